"""The benchmark's own arithmetic: medians, ratios, and whether a promise holds."""

import json
import sys

import pytest

from project import BENCHMARKS


@pytest.fixture(scope="module", autouse=True)
def importable():
    sys.path.append(str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


def made(*rows):
    from figures import Figures

    figures = Figures()
    for work, what, peer, unit, *values in rows:
        figures.add(work, what, peer, unit, values)
    return figures


def verdicts(figures, **versions):
    from criteria import judge

    return {one.wanted: one for one in judge(figures, versions)}


def test_a_figure_has_its_median_its_quartiles_and_how_often():
    figure = made(("trip", "round trip", "jupyter", "s", 3.0, 1.0, 2.0, 5.0, 4.0)).all[0]
    assert (figure.median, figure.q1, figure.q3, figure.n) == (3.0, 2.0, 4.0, 5)


@pytest.mark.parametrize(
    ("values", "share", "wanted"),
    [([1.0], 0.99, 1.0), ([1.0, 2.0], 0.5, 1.5), (list(range(101)), 0.99, 99)],
)
def test_percentiles_lie_between_their_neighbours(values, share, wanted):
    from figures import percentile

    assert percentile(values, share) == pytest.approx(wanted)


def test_a_ratio_is_to_the_peer_of_the_same_work():
    figures = made(
        ("cold", "first result", "docker_run", "s", 2.0),
        ("cold", "first result", "belljar_native", "s", 0.02),
        ("trip", "round trip", "belljar_native", "s", 0.001),
    )
    reference, ours, alone = figures.all
    assert figures.ratio(ours) == pytest.approx(0.01)
    assert figures.ratio(reference) is None
    assert figures.ratio(alone) is None  # no kernel was measured


def test_another_peer_is_taken_where_the_first_is_missing():
    figures = made(
        ("cold", "first result", "subprocess_imports", "s", 1.0),
        ("cold", "first result", "belljar_native", "s", 0.1),
    )
    assert figures.as_json()[1]["to"] == "subprocess_imports"


@pytest.mark.parametrize(("ours", "holds"), [(0.02, True), (0.021, False)])
def test_a_cold_start_is_held_against_docker_run(ours, holds):
    figures = made(
        ("cold", "first result", "docker_run", "s", 1.0),
        ("cold", "first result", "belljar_native", "s", ours),
    )
    found = verdicts(figures)["new sandbox with pandas: at most 1/50 of docker run"]
    assert found.holds is holds


@pytest.mark.parametrize(("rate", "holds"), [(80.0, True), (79.9, False)])
def test_a_rate_has_a_least(rate, holds):
    figures = made(("throughput", "at 8: rate", "belljar_native", "per second", rate))
    wanted = "one-shots with pandas, 8 at once, Python 3.11: at least 80 per second"
    assert verdicts(figures, belljar_native="belljar 1, Python 3.11.7").get(wanted).holds is holds


@pytest.mark.parametrize(
    ("native", "other", "rates"), [("3.11", "3.13", (60, 90)), ("3.13", "3.11", (90, 60))]
)
def test_one_shots_are_held_against_what_is_wanted_of_their_python(native, other, rates):
    figures = made(
        ("throughput", "at 8: rate", "belljar_native", "per second", rates[0]),
        ("throughput", "at 8: rate", "belljar_other", "per second", rates[1]),
    )
    versions = {"belljar_native": f"belljar 1, Python {native}.1, pandas 3"}
    found = verdicts(figures, **versions, belljar_other=f"belljar 1, Python {other}.1, pandas 3")
    shots = "one-shots with pandas, 8 at once"
    assert found[f"{shots}, Python 3.11: at least 80 per second"].measured == "60.0/s"
    assert found[f"{shots}, Python ≥ 3.12: at least 95 per second"].measured == "90.0/s"


def test_what_was_not_measured_does_not_hold():
    assert {one.holds for one in verdicts(made()).values()} == {None}


@pytest.mark.parametrize(
    ("old", "kept", "count", "holds"),
    [
        (1.0, 0, 50_000, True),
        (1.2, 0, 50_000, False),
        (1.0, 4096, 50_000, False),
        (1.0, 0, 1_000, None),
    ],
)
def test_growth_over_cells_is_of_time_or_of_memory(old, kept, count, holds):
    who = "belljar_native"
    figures = made(
        ("cells", "count", who, "", count),
        ("cells", "old session", who, "s", old),
        ("cells", "new session beside it", who, "s", 1.0),
        ("cells", "kept per cell, init", who, "bytes", 0),
        ("cells", "kept per cell, worker", who, "bytes", kept),
        ("cells", "kept per cell, host", who, "bytes", 0),
    )
    [found] = [one for wanted, one in verdicts(figures).items() if wanted.startswith("50,000")]
    assert found.holds is holds


@pytest.mark.parametrize(
    ("before", "others", "quiet"),
    [
        (0.9, [0.0, 0.1, 0.0], True),
        (1.0, [0.0, 0.1, 0.0], False),  # it began on a busy machine
        (0.1, [0.0, 0.1, 1.0], False),  # something runs at its end
        (0.1, [0.0, 1.0, 1.0, 1.0, 0.0], False),  # and here most of the time
        (0.1, [0.0, 0.0, 1.9, 0.0, 0.0], True),
    ],
)
def test_a_run_is_quiet_if_nothing_else_ran(before, others, quiet):
    from quiet import is_quiet, quiet_words

    found = {"before": before, "after": 9.0, "others": others}  # the load after is its own
    assert is_quiet(found) is quiet
    assert ("not quiet" in quiet_words(found)) is not quiet


def test_a_run_of_a_busy_machine_is_not_published(tmp_path, monkeypatch):
    import bench

    page = tmp_path / "page.md"
    page.write_text("<!-- speed: a -->\nold\n<!-- end of speed -->\n")
    monkeypatch.setattr(bench, "PAGES", (page,))
    monkeypatch.setattr(bench, "REPORTS", tmp_path)
    made_by_run = tmp_path / "run.json"
    made_by_run.write_text("{}")
    run = a_run()
    run["host"]["quiet"] = {"before": 26.0, "after": 26.0, "others": [2.0, 2.0]}
    with pytest.raises(SystemExit, match="not published, the machine was not quiet"):
        bench.publish(run, made_by_run)
    assert "old" in page.read_text()
    run["host"]["quiet"] = {"before": 0.1, "after": 9.0, "others": [0.0, 0.0]}
    bench.publish(run, made_by_run)
    assert "old" not in page.read_text()
    assert (tmp_path / "benchmarks.json").is_file()


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0.00045, "s", "450 µs"),
        (0.0123, "s", "12.3 ms"),
        (1.5, "s", "1.50 s"),
        (10_200_000, "bytes", "10.2 MB"),
        (700, "bytes", "700 bytes"),
        (50_000.0, "", "50,000"),
        (85.0, "per second", "85.0/s"),
        (1234.0, "MB/s", "1,234 MB/s"),
    ],
)
def test_quantities_read_well(value, unit, shown):
    from figures import quantity

    assert quantity(value, unit) == shown


def a_run():
    return {
        "host": {
            **{"date": "2026-01-01", "belljar": "1", "python": "3.11.1", "packages": ["pandas==3"]},
            **{"kernel": "6", "machine": "x", "processor": "", "processors": 2},
            **{"memory": 2**30, "root": True, "load": 0.0},
        },
        "how": "once",
        "peers": {
            "docker_run": {
                **{"title": "docker run", "settings": "as it is", "isolation": "container"},
                **{"version": "28", "left_out": {"trip": "no session"}},
                "failures": {"cold": "no engine"},
            }
        },
        "missing": {"jupyter": "it could not be installed"},
        "figures": made(("cold", "first result", "docker_run", "s", 1.0)).as_json(),
        "courses": {},
        "criteria": [],
    }


def test_peers_that_are_missing_are_in_every_text_with_the_reason():
    import report

    texts = report.markdown(json.loads(json.dumps(a_run())))
    assert "missing: it could not be installed" in texts["benchmarks"]
    for words in ("it could not be installed", "no engine", "no session"):
        assert words in texts["benchmark results"]
