"""The conformance suite: it holds here, it can fail, and its reports say what was seen."""

import json
import socket
import subprocess
import sys
from html.parser import HTMLParser

import pytest

import oracles
import setting
from belljar import InvalidOption, Sandbox
from belljar.backends.isolation import Isolation, Layer
from belljar.cli import conformance as command
from belljar.cli import main
from belljar.conformance import controls, report_data, report_html, report_text, rows, runner
from belljar.conformance.canaries import ENVIRONMENT_SECRET, VARIABLE
from belljar.conformance.report_data import (
    Attempt,
    ControlResult,
    Head,
    Look,
    Report,
    RowResult,
    State,
)
from belljar.conformance.rows import FAMILIES, ROWS

pytestmark = [pytest.mark.timeout(300), pytest.mark.contract("native")]


def run(*rows, make=None, controls=True):
    return runner.run(oracles.SETTING, rows, lambda *told: None, controls=controls, make=make)


def weakened(**always):
    """Sandboxes with something that nobody asked for."""

    def make(**options):
        return Sandbox.create(**{"environment": "python", **options, **always})

    return make


@pytest.fixture(autouse=True)
def secret_of_the_other_tests():
    """The suite takes its variable away at its end."""
    yield
    oracles.os.environ[VARIABLE] = ENVIRONMENT_SECRET


# --- it holds, and it can fail -------------------------------------------------------------------


def test_what_has_just_happened_to_the_host_is_seen():
    with oracles.Canaries() as canaries:
        for _ in range(5):
            canaries.process.kill()  # its death takes a moment
            assert set(canaries.find_damage()) == {"process"}
            canaries.restore()
            with socket.socket(socket.AF_UNIX) as caller:  # has no packets that may be late
                caller.connect(canaries.unix_path)
            assert set(canaries.find_damage()) == {"hits"}
            canaries.reset()
            assert canaries.find_damage() == {}


def test_rows_hold_here_and_their_controls_trip(backend):
    report = run(2, 44, 62, 74)
    assert report.held, report_text.summary(report)
    states = {row.number: row.state for row in report.rows}
    assert states == {2: "held", 44: "held", 62: "held", 74: "does not apply"}
    first = report.rows[0].attempts[0]
    assert first.control.tripped
    assert first.control.where == "an unprivileged process"
    assert any("posture" in line for line in first.evidence)
    assert (report.head.backend, report.leftovers) == (setting.BACKEND, ())


def test_a_sandbox_that_leaks_a_secret_fails_its_row(backend):
    report = run(1, make=weakened(env={VARIABLE: ENVIRONMENT_SECRET}), controls=False)
    assert not report.held
    (row,) = report.rows
    assert row.state == "failed"
    assert "a secret of the host is in the output" in report_text.summary(report)


@pytest.mark.native_only("the same code judges containers")
def test_a_sandbox_without_its_limit_fails_its_row(backend):
    report = run(21, make=weakened(limits={"processes": 200}), controls=False)
    assert report.rows[0].state == "failed"


@pytest.mark.native_only("the same code judges containers")
def test_a_control_that_does_not_trip_makes_its_row_vacuous(backend, monkeypatch):
    blind = ControlResult(where="an unprivileged process", tripped=False, showed="nothing")
    monkeypatch.setattr(controls, "run_unstopped", lambda *args: blind)
    report = run(4)
    assert report.rows[0].state == "vacuous"
    assert not report.held
    assert "DID NOT TRIP" in report_text.render(report)


@pytest.mark.native_only("the same code judges containers")
def test_what_cannot_be_judged_is_a_failure_and_ends_no_other_row(backend, monkeypatch):
    def broken(*args, **options):
        raise OSError("no such luck")

    monkeypatch.setattr(runner.attempts, "try_program", broken)
    report = run(4, 62)
    assert [row.state for row in report.rows] == ["failed", "held"]


def test_an_attempt_that_was_only_slow_is_tried_once_more(monkeypatch):
    looks = []

    class Slow:
        name, rows, what, expected = "slow", (1,), "nothing", "nothing"

        @staticmethod
        def run(stage, look):
            looks.append(look)
            look.in_time(10 if len(looks) == 1 else 1, 5)

    class Nowhere:
        @staticmethod
        def close_all():
            pass

    attempt = runner.make_attempt(Slow, Nowhere, None)
    assert (attempt.state, len(looks)) == ("held", 2)
    assert "at the first try it took 10.0 s" in attempt.evidence[-1]
    late = Look()
    late.in_time(10, 5)
    late.wrong("and more")
    assert not late.only_late


# --- the data ------------------------------------------------------------------------------------


def test_every_row_is_described_once_and_its_mechanisms_are_known():
    assert [row.number for row in ROWS] == list(range(1, 97))
    assert len({row.title for row in ROWS}) == len(ROWS) == 96
    for row in ROWS:
        assert row.family in FAMILIES
        for kind in ("native", "docker", "gvisor"):
            for counted in (True, False):
                assert rows.explain_mechanisms(row.stopped_by, kind, counted=counted)


def test_a_row_is_what_the_worst_of_its_attempts_is():
    def row(*states):
        attempts = tuple(made(state=state) for state in states)
        return RowResult(number=1, title="", family="", mechanisms=(), attempts=attempts)

    assert row(State.HELD, State.NOT_APPLICABLE, State.NOT_RUN).state == "held"
    assert row(State.HELD, State.BEST_EFFORT).state == "best effort"
    assert row(State.HELD, State.VACUOUS).state == "vacuous"
    assert row(State.VACUOUS, State.FAILED, State.HELD).state == "failed"
    assert row(State.NOT_APPLICABLE, State.NOT_RUN).state == "not run"
    assert row().state == "not run"


def test_the_suite_is_imported_only_when_it_is_asked_for():
    program = (
        "import sys, belljar, belljar.cli\nfrom belljar.cli import entry\n"
        "sys.exit(any(name.startswith('belljar.conformance') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# --- reports -------------------------------------------------------------------------------------

HOSTILE = "<script>alert(1)</script>\x1b[2J&\"'"


def made(state=State.FAILED, text="plain"):
    return Attempt(
        name=text,
        what=text,
        expected=text,
        actual=text,
        evidence=(text,),
        problems=(text,) if state is State.FAILED else (),
        control=ControlResult(where=text, tripped=True, showed=text),
        state=state,
    )


def a_report(text="plain", state=State.FAILED):
    layer = Layer(name="seccomp", state="enforced", detail=text)
    head = Head(
        **dict.fromkeys(("version", "setting", "backend", "runtime", "user", "machine"), text),
        **dict.fromkeys(("kernel", "system", "python", "engine", "date"), text),
        isolation=Isolation(backend="native", layers=(layer,), limits=()),
        controls=True,
        seconds=1.0,
    )
    row = RowResult(
        number=1, title=text, family=FAMILIES[0], mechanisms=(text,), attempts=(made(state, text),)
    )
    left = (text,) if state is State.FAILED else ()
    return Report(head=head, rows=(row,), leftovers=left)


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.links = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_html_escapes_all_that_a_guest_may_have_said():
    text = report_html.render(a_report(HOSTILE))
    page = Page(text)
    assert page.open == []
    assert page.links == []
    assert not {"script", "img", "iframe", "link", "object"} & set(page.tags)
    assert "\x1b" not in text
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[2J&amp;&quot;&#x27;") > 20


def test_html_says_the_state_in_words_and_opens_what_failed():
    failed, held = (report_html.render(a_report(state=s)) for s in (State.FAILED, State.HELD))
    assert "NOT HELD (row 1)" in failed
    assert "What did not hold" in failed
    assert "<details open>" in failed
    assert '<span class="badge failed">FAILED</span>' in failed
    assert "HELD: 1 of 1 rows held; 95 of 96 rows were not asked for" in held
    assert "<details open>" not in held


def test_text_is_printable_and_complete():
    for text in (report_text.render(a_report(HOSTILE)), report_text.summary(a_report(HOSTILE))):
        assert "\x1b" not in text
        assert "NOT HELD (row 1)" in text
    whole = report_text.render(a_report())
    for label in ("stopped by:", "expected:", "actual:", "seen:", "PROBLEM:", "control:"):
        assert label in whole


def test_the_fields_of_the_json_stay_as_they_are():
    found = json.loads(report_data.render_json(a_report(HOSTILE)))
    assert found["schema"] == 1
    assert sorted(found) == [
        *("belljar", "controls", "date", "held", "isolation", "left_behind", "rows"),
        *("rows_not_asked_for", "schema", "seconds", "setting", "totals"),
    ]
    assert sorted(found["setting"]) == [
        *("backend", "engine", "kernel", "machine", "name", "python", "runtime", "system", "user"),
    ]
    (row,) = found["rows"]
    assert sorted(row) == [
        *("attempts", "family", "mechanisms", "row", "seconds", "state", "title"),
    ]
    (attempt,) = row["attempts"]
    assert sorted(attempt) == [
        *("actual", "attempt", "control", "evidence", "expected", "name", "problems"),
        *("seconds", "state", "why"),
    ]
    assert sorted(attempt["control"]) == ["showed", "tripped", "where"]
    assert set(found["totals"]) == {state.value for state in State}
    assert found["held"] is False


# --- the command ---------------------------------------------------------------------------------


def test_rows_are_numbers_and_spans():
    assert command.chosen(None) == set(range(1, 97))
    assert command.chosen(["3", "20-22,5"]) == {3, 5, 20, 21, 22}


@pytest.mark.parametrize("word", ["0", "97", "x", "5-3", "1-", "-1", "90-100", "1.5"])
def test_a_row_that_is_none_is_refused_with_a_hint(word):
    with pytest.raises(InvalidOption, match="there is no row") as raised:
        command.chosen([word])
    assert "--list" in raised.value.hint


@pytest.mark.parametrize(
    "words",
    [
        ["--row", "99"],
        ["--format", "pdf"],
        ["--backend", "native", "--runtime", "runc"],
        ["--backend", "elsewhere"],
        ["--row", "1", "--out", "/nowhere/report.html"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2(words, capsys):
    assert main(["conformance", *words]) == 2
    assert capsys.readouterr().err.startswith("belljar: ")


def test_the_list_shows_rows_and_runs_nothing(capsys):
    assert main(["conformance", "--list", "--row", "1-3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert "Secrets of the host are read" in lines[1]


@pytest.mark.native_only("the same code")
def test_the_command_writes_its_report_and_says_the_verdict(backend, tmp_path, capsys):
    out = tmp_path / "report.json"
    words = ["--backend", "native", "--row", "3", "--no-controls", "--format", "json"]
    assert main(["conformance", *words, "--out", str(out)]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("HELD, WITHOUT CONTROLS: 1 of 1 rows held; 95 of 96 rows were")
    assert told.err == ""  # no terminal, no progress
    found = json.loads(out.read_text())
    assert (found["held"], found["controls"]) == (True, False)
    assert [row["row"] for row in found["rows"]] == [3]
