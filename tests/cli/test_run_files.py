"""`belljar run`: files in and out."""

from __future__ import annotations

import json
import os

import pytest

from command_line import Cli


def test_put_and_get_carry_a_file_there_and_back(belljar: Cli) -> None:
    content = bytes(range(256)) * 5000
    (belljar.directory / "in.bin").write_bytes(content)
    done = belljar.run(
        "data = open('in.bin', 'rb').read(); open('out.bin', 'wb').write(data[::-1]);",
        *("--put", "in.bin", "--get", "out.bin"),
    )
    assert done.returncode == 0, done.stderr
    assert (belljar.directory / "out.bin").read_bytes() == content[::-1]


def test_put_and_get_can_give_other_names(belljar: Cli) -> None:
    (belljar.directory / "a.txt").write_text("A")
    (belljar.directory / "there").mkdir()
    done = belljar.run(
        "both = open('sub/b.txt').read() + open('/workspace/d/a.txt').read()\n"
        "open('sub/c.txt', 'w').write(both);",
        *("--put", "a.txt:sub/b.txt", "--put", "a.txt:d/"),
        *("--get", "sub/c.txt:e.txt", "--get", "/workspace/sub/c.txt:there", "--get", "sub/c.txt"),
    )
    assert done.returncode == 0, done.stderr
    for name in ("e.txt", "there/c.txt", "c.txt"):
        assert (belljar.directory / name).read_text() == "AA"


def test_file_whose_name_has_a_colon_can_be_put(belljar: Cli) -> None:
    (belljar.directory / "a:b").write_text("colon")
    assert belljar.run("print(open('a:b').read())", "--put", "a:b").stdout == "colon\n"


def test_get_fetches_also_after_the_code_failed(belljar: Cli) -> None:
    done = belljar.run("open('log', 'w').write('so far')\n1/0", "--get", "log")
    assert done.returncode == 1
    assert (belljar.directory / "log").read_text() == "so far"


def test_get_fetches_also_after_the_codes_process_died(belljar: Cli) -> None:
    code = "import os\nopen('log', 'w').write('so far')\nos.kill(os.getpid(), 9)"
    assert belljar.run(code, "--get", "log").returncode == 137
    assert (belljar.directory / "log").read_text() == "so far"


def test_file_that_is_not_there_is_said_and_the_others_are_fetched(belljar: Cli) -> None:
    done = belljar.run("open('b', 'w').write('B');", "--get", "a", "--get", "b")
    assert done.returncode == 121
    assert done.stderr == "belljar: --get: there is no 'a' in the sandbox\n"
    assert (belljar.directory / "b").read_text() == "B"
    assert belljar.run("1/0", "--get", "a").returncode == 1


def test_guest_cannot_choose_where_a_fetched_file_lands(belljar: Cli) -> None:
    canary = belljar.directory / "canary"
    canary.write_text("untouched")
    (belljar.directory / "box").mkdir()
    code = f"""
import os
os.symlink({str(canary)!r}, 'link')
os.makedirs('/tmp/x/..hidden')
open('/tmp/evil', 'w').write('EVIL')
os.symlink('/tmp/evil', 'named')
"""
    done = belljar.run(
        code, "--get", "link:box/", "--get", "named:box/", "--get", "/workspace/../tmp/evil:box/"
    )
    assert done.returncode == 121  # the first leads nowhere: the guest has no such file
    assert canary.read_text() == "untouched"
    assert sorted(os.listdir(belljar.directory / "box")) == ["evil", "named"]
    assert not (belljar.directory / "box" / "named").is_symlink()


def test_guest_cannot_make_get_read_a_file_of_the_host(belljar: Cli) -> None:
    secret = belljar.directory / "secret"
    secret.write_text("canary")
    done = belljar.run(f"import os; os.symlink({str(secret)!r}, 'x')", "--get", "x:out")
    assert done.returncode == 121
    assert not (belljar.directory / "out").exists()


def test_rich_results_are_saved_where_out_says(belljar: Cli) -> None:
    code = """
class Picture:
    def _repr_png_(self): return b"\\x89PNG..."
    def _repr_html_(self): return "<b>picture</b>"
display("text only")
display(Picture())
Picture()
"""
    done = belljar.run(code, "--out", "new/results")
    assert done.returncode == 0
    saved = belljar.directory / "new" / "results"
    assert sorted(os.listdir(saved)) == [
        "result-1.html",
        "result-1.png",
        "result-2.html",
        "result-2.png",
    ]
    assert (saved / "result-1.png").read_bytes() == b"\x89PNG..."
    assert "saved new/results/result-1.png" in done.stderr
    assert "--out DIR" in belljar.run(code).stderr
    assert belljar.run(code, "--json").stderr == ""


DATA = """
import matplotlib.pyplot as plt, pandas as pd
plt.plot([1, 2], [3, 4])
plt.show()
display({"application/vnd.plotly.v1+json": {"data": []}, "text/plain": "plotly"}, raw=True)
display({"application/vnd.vegalite.v5+json": {"mark": "bar"}, "text/plain": "altair"}, raw=True)
pd.DataFrame({"name": ["ada", "bob"] * 15, "age": range(30)})
"""


def test_figures_charts_and_tables_are_saved_where_out_says(data_belljar: Cli) -> None:
    pytest.importorskip("pandas")
    done = data_belljar("run", "--out", "results", "-", code=DATA)
    assert done.returncode == 0, done.stderr
    saved = data_belljar.directory / "results"
    assert sorted(os.listdir(saved)) == [
        "result-1.chart.json",
        "result-1.png",
        "result-2.plotly.json",
        "result-3.vega.json",
        "result-4.csv",
        "result-4.html",
    ]
    assert (saved / "result-1.png").read_bytes().startswith(b"\x89PNG")
    chart = json.loads((saved / "result-1.chart.json").read_text())
    assert chart["elements"][0]["points"] == [[1.0, 3.0], [2.0, 4.0]]
    assert (saved / "result-4.csv").read_text().splitlines()[:2] == [",name,age", "0,ada,0"]
    assert json.loads((saved / "result-3.vega.json").read_text()) == {"mark": "bar"}
    # In a pipe a table is the text that the code would have printed.
    assert done.stdout.splitlines()[-1] == "29  bob   29"


def test_table_without_csv_is_said_and_the_rest_is_saved(belljar: Cli) -> None:
    code = """
display({"application/vnd.belljar.table": b"\\x80\\x04.", "text/html": "<b>"}, raw=True)
"""
    done = belljar.run(code, "--out", "results")
    assert done.returncode == 0
    assert os.listdir(belljar.directory / "results") == ["result-1.html"]
    assert "no CSV was saved: the table is too large or contains lists" in done.stderr


def test_table_is_drawn_at_a_terminal(data_belljar: Cli) -> None:
    pytest.importorskip("pandas")
    (data_belljar.directory / "code.py").write_text(DATA)
    with data_belljar.terminal("run", "code.py") as terminal:
        seen = terminal.read_all()
    assert "--out DIR saves such results" in seen
    assert "───" in seen
    assert "20 of 30 rows" in seen


def test_result_that_cannot_be_saved_is_exit_code_121(belljar: Cli) -> None:
    (belljar.directory / "taken").write_text("a file")
    code = "class P:\n    def _repr_png_(self): return b'png'\nP()"
    done = belljar.run(code, "--out", "taken")
    assert done.returncode == 121
    assert "cannot write" in done.stderr
