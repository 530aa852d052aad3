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


def verdicts(figures):
    from criteria import judge

    return {one.wanted: one for one in judge(figures)}


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
    found = verdicts(figures)["new sandbox with pandas: at most 1/50 of docker run, same imports"]
    assert found.holds is holds


def test_what_was_not_measured_does_not_hold():
    assert {one.holds for one in verdicts(made()).values()} == {None}


@pytest.mark.parametrize(
    ("last", "kept", "count", "holds"),
    [
        (1.0, 0, 10_000, True),
        (1.2, 0, 10_000, False),
        (1.0, 4096, 10_000, False),
        (1.0, 0, 1_000, None),
    ],
)
def test_growth_over_cells_is_of_time_or_of_memory(last, kept, count, holds):
    who = "belljar_native"
    figures = made(
        ("cells", "count", who, "", count),
        ("cells", "first tenth", who, "s", 1.0),
        ("cells", "last tenth", who, "s", last),
        ("cells", "kept per cell, guest", who, "bytes", kept),
        ("cells", "kept per cell, host", who, "bytes", 0),
    )
    assert verdicts(figures)["10,000 cells in one session: no growth"].holds is holds


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0.00045, "s", "450 µs"),
        (0.0123, "s", "12.3 ms"),
        (1.5, "s", "1.50 s"),
        (10_200_000, "bytes", "10.2 MB"),
        (700, "bytes", "700 bytes"),
        (85.0, "per second", "85.0/s"),
        (1234.0, "MB/s", "1,234 MB/s"),
    ],
)
def test_quantities_read_well(value, unit, shown):
    from figures import quantity

    assert quantity(value, unit) == shown


def test_peers_that_are_missing_are_in_every_text_with_the_reason():
    import report

    run = {
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
        "criteria": [],
    }
    texts = report.markdown(json.loads(json.dumps(run)))
    assert "missing: it could not be installed" in texts["benchmarks"]
    for words in ("it could not be installed", "no engine", "no session"):
        assert words in texts["benchmark results"]
