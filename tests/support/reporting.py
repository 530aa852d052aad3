"""What became of the tests: one record of each pytest run, and one verdict over all of them.

As a pytest plugin it writes the record of a run to $BELLJAR_TEST_RECORD. As a program it reads
the records of all jobs that `scripts/test` ran, JOB.json and, for tests that ran a second time,
JOB.again-N.json:

    reporting.py failed DIRECTORY             what to run again, one "JOB TEST" a line
    reporting.py verdict DIRECTORY FLAKY      prints the verdict, writes FLAKY, exits with 0 or 1

A test that fails and then passes alone is flaky. Up to MOST_FLAKY of them do not fail a run.
"""

import dataclasses
import json
import os
import sys
from collections import Counter
from pathlib import Path

MOST_FLAKY = 3
MOST_AGAIN = 10  # more failures than this are no accident, and are not run again
SLOWEST = 30


class Recorder:
    """Keeps what each test did, and writes it when the run ends."""

    def __init__(self, path):
        self._path = path
        self._outcomes = {}
        self._seconds = Counter()
        self._failed = {}

    def pytest_runtest_logreport(self, report):
        name = report.nodeid
        self._seconds[name] += report.duration
        if report.failed:
            sections = [f"--- {title}\n{text}" for title, text in report.sections]
            text = "\n".join([report.longreprtext, *sections])
            self._failed[name] = "\n".join(filter(None, [self._failed.get(name), text]))
            self._outcomes[name] = "failed"
        elif report.skipped:
            self._outcomes[name] = "xfailed" if hasattr(report, "wasxfail") else "skipped"
        else:
            self._outcomes.setdefault(name, "passed")

    def pytest_collectreport(self, report):
        if report.failed:
            self._failed[report.nodeid] = report.longreprtext
            self._outcomes[report.nodeid] = "failed"

    def write(self, left_behind):
        record = {
            "counts": Counter(self._outcomes.values()),
            "failed": self._failed,
            "left_behind": left_behind,
            "seconds": {name: round(seconds, 2) for name, seconds in self._seconds.items()},
        }
        Path(self._path).write_text(json.dumps(record))


# --- the verdict: decided from records, without looking at anything else -------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One setting, or half of one."""

    name: str
    status: str = "0"  # of pytest: 1 says that tests failed
    line: str = ""  # how long it took, or why it was left out
    problem: str = ""  # what failed beside its tests
    record: dict = dataclasses.field(default_factory=dict)
    again: dict = dataclasses.field(default_factory=dict)  # test → the record of its second run

    @property
    def failed(self):
        return self.record.get("failed", {})

    @property
    def left_behind(self):
        return self.record.get("left_behind", ())

    def second_failure(self, test):
        """What a test printed the second time; "" if it passed, None if it did not run again."""
        record = self.again.get(test)
        if record is None:
            return None
        if record["failed"] or record["left_behind"]:
            return "\n".join([*record["failed"].values(), *record["left_behind"]])
        return "" if record["counts"].get("passed") else "no test of this name was run"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    ok: bool
    flaky: tuple  # (job, test)
    failed: tuple  # (job, test)
    problems: tuple  # sentences


def decide(jobs):
    flaky, failed, problems = [], [], []
    for job in jobs:
        if job.problem:
            problems.append(f"{job.name}: {job.problem}")
        if not job.failed:  # a test that failed may have left things, and is judged by itself
            problems += [f"{job.name}: left behind: {line}" for line in job.left_behind]
        if job.status == "1" and not job.failed and not job.left_behind:
            problems.append(f"{job.name}: pytest failed, and its record does not say why")
        for test in job.failed:
            passed_alone = job.second_failure(test) == ""
            (flaky if passed_alone else failed).append((job.name, test))
    if len(flaky) > MOST_FLAKY:
        problems.append(f"{len(flaky)} tests are flaky, and {MOST_FLAKY} at most may be")
    ok = not failed and not problems
    return Verdict(ok=ok, flaky=tuple(flaky), failed=tuple(failed), problems=tuple(problems))


def to_run_again(jobs):
    """(job, test) of the failures, unless they are too many to be an accident."""
    failures = [(job.name, test) for job in jobs for test in job.failed]
    return failures if len(failures) <= MOST_AGAIN else []


def describe(jobs, verdict, flaky_file):
    """The last lines of a run."""
    lines = [f"the {SLOWEST} slowest tests, with their setting:"]
    times = [
        (s, job.name, test) for job in jobs for test, s in job.record.get("seconds", {}).items()
    ]
    lines += [
        f"  {s:6.1f} s  {name:14}  {test}" for s, name, test in sorted(times)[: -SLOWEST - 1 : -1]
    ]
    lines += [""]
    for job in jobs:
        counts = [f"{number} {kind}" for kind, number in job.record.get("counts", {}).items()]
        lines.append(f"{job.name}: {', '.join(counts)} {job.line}")
    lines += [f"FAILED: {name}: {test}" for name, test in verdict.failed]
    lines += [f"FAILED: {problem}" for problem in verdict.problems]
    for job in jobs:
        if job.failed:
            lines += [f"left behind, after a failure: {job.name}: {x}" for x in job.left_behind]
    lines += [f"flaky (passed alone): {name}: {test}" for name, test in verdict.flaky]
    if verdict.flaky:
        lines += [
            f"  both outputs are in {flaky_file}: fix or delete it, and say so in tests/FLAKY.md"
        ]
    counts = sum((Counter(job.record.get("counts", {})) for job in jobs), Counter())
    counts["passed"] += len(verdict.flaky)
    counts["failed"] -= len(verdict.flaky)
    lines.append(
        "tests: " + ", ".join(f"{counts[kind]} {kind}" for kind in ("passed", "failed", "skipped"))
    )
    return lines


def outputs(jobs, verdict):
    """Both outputs of each flaky test."""
    by_name = {job.name: job for job in jobs}
    for name, test in verdict.flaky:
        yield f"=== {name}: {test}\n--- failed at first:\n{by_name[name].failed[test]}\n"
        yield f"--- passed alone, after everything else:\n{by_name[name].again[test]['log']}\n"


# --- as a program --------------------------------------------------------------------------------


def read_jobs(directory):
    """Jobs as `scripts/test` leaves them: JOB.job has their fields, a NAME=VALUE a line."""
    for path in sorted(Path(directory).glob("*.job")):
        fields = dict(line.split("=", 1) for line in path.read_text().splitlines())
        name, again = path.stem, {}
        for test in path.parent.glob(f"{name}.again-*.test"):
            again[test.read_text().strip()] = _second_run(test)
        record = _read(path.with_suffix(".json")) or {}
        yield Job(name=name, record=record, again=again, **fields)


def _second_run(test):
    died = {"": "pytest ended without a record of its second run"}
    record = _read(test.with_suffix(".json")) or {"counts": {}, "failed": died, "left_behind": []}
    return {**record, "log": test.with_suffix(".log").read_text()}


def _read(path):
    return json.loads(path.read_text()) if path.exists() else None


def main(command, directory, flaky_file=""):
    jobs = list(read_jobs(directory))
    if command == "failed":
        for name, test in to_run_again(jobs):
            print(name, test)
        return 0
    verdict = decide(jobs)
    for job in jobs:
        for test, text in job.failed.items():
            print(f"\n=== {job.name}: {test}\n{text[-8000:]}")
            if second := job.second_failure(test):
                print(f"--- and once more, alone:\n{second[-8000:]}")
    if verdict.flaky:
        os.makedirs(os.path.dirname(flaky_file), exist_ok=True)
        Path(flaky_file).write_text("".join(outputs(jobs, verdict)))
    print("", *describe(jobs, verdict, flaky_file), sep="\n")
    return 0 if verdict.ok else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
