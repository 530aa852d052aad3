"""What may become a file of the host, and under which name."""

import io
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from belljar.compat.pandasai import answers


def png(width=4, height=3):
    buffer = io.BytesIO()
    Image.new("RGB", (width, height)).save(buffer, "png")
    return buffer.getvalue()


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def test_a_picture_passes():
    answers.check_png(png())


def bomb():
    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    return png()[:8] + chunk(b"IHDR", header) + chunk(b"IDAT", b"x") + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not a PNG"),
        (b"GIF89a" + b"\0" * 50, "not a PNG"),
        (png()[:-1], "cut off|damaged"),
        (png()[:40], "cut off|damaged"),
        (png()[:8], "lacks"),
        (png()[:-20] + b"\0" * 20, "damaged|cut off"),
        (png() + b"#!/bin/sh\n", "cut off|damaged"),
        (png() + b"x" * answers.MAX_PNG_BYTES, "more than"),
        (bomb(), "pixels"),
    ],
)
def test_what_is_no_whole_and_sane_picture_is_refused(data, why):
    with pytest.raises(ValueError, match=why):
        answers.check_png(data)


@given(st.binary(max_size=200))
def test_no_bytes_do_harm_to_the_check(data):
    for text in (data, png()[:8] + data, png()[:33] + data):
        with pytest.raises(ValueError, match="PNG"):
            answers.check_png(text)


@pytest.mark.parametrize(
    ("proposed", "name"),
    [
        ("temp_chart_1-2.png", "temp_chart_1-2.png"),
        ("/etc/cron.d/x.png", "x.png"),
        ("..\\..\\x.png", "x.png"),
        ("exports/charts/..", "chart.png"),
        (".hidden.png", "chart.png"),
        ("a b.png", "chart.png"),
        ("a\nb.png", "chart.png"),
        ("chart.sh", "chart.sh.png"),
        ("é" * 300 + ".png", "chart.png"),
        ("x" * 300, "chart.png"),
        ("", "chart.png"),
    ],
)
def test_the_name_is_a_plain_one_in_the_directory(tmp_path, proposed, name):
    assert answers.save_chart(b"1", proposed, tmp_path / "new" / "place").name == name
    assert [path.name for path in (tmp_path / "new" / "place").iterdir()] == [name]


def test_each_picture_has_a_file_of_its_own(tmp_path):
    names = [answers.save_chart(b"1", "a.png", tmp_path).name for _ in range(3)]
    assert names == ["a.png", "a-2.png", "a-3.png"]
