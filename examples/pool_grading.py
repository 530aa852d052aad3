"""Grading many submissions: each on a warm guest of its own, many at once, results in order."""

from collections import Counter
from collections.abc import Iterator

from belljar import Execution, Limits, Outcome, Pool, Snippet

TESTS = "[median(numbers) for numbers in cases]"
CASES = [[3, 1, 2], [5], [4, 4, 1, 9, 7]]
RIGHT = [2, 5, 4]

KINDS = {
    "a": "def median(xs):\n    return sorted(xs)[len(xs) // 2]",
    "b": "import statistics\nmedian = statistics.median",
    "c": "def median(xs):\n    return xs[len(xs) // 2]",
    "d": "def median(xs):\n    while True:\n        pass",
    "e": "def median(xs)\n    return 0",
}


def submissions() -> Iterator[tuple[str, str]]:
    """As many as there are; none is read before its turn comes."""
    for number in range(100):
        kind = "abcde"[number % 5]
        yield f"{kind}{number}", KINDS[kind]


def snippets() -> Iterator[Snippet]:
    for _, source in submissions():
        # The tests run after the submission, in its sandbox, if it could be loaded.
        yield Snippet(source, then=TESTS, variables={"cases": CASES}, timeout=2)


def verdict(execution: Execution) -> str:
    if execution.outcome is Outcome.timeout:
        return "too slow"
    if not execution.ok:
        return "error"
    # `value` is data that the submission may have made up, so it is compared, never trusted.
    return "passed" if execution.value == RIGHT else "wrong answer"


def main() -> None:
    limits = Limits(memory="128m", processes=8, open_files=64, output="64k")
    verdicts: Counter[str] = Counter()
    passed: dict[str, int] = {}  # by the length of the code
    # strict=False: no warning for a user without a control group, whose memory is best effort.
    options = {"environment": "python", "limits": limits, "strict": False}
    with Pool(min_ready=4, max_total=16, **options) as pool:
        for (name, source), execution in zip(
            submissions(), pool.map(snippets(), concurrency=8), strict=True
        ):
            found = verdict(execution)
            verdicts[found] += 1
            if found == "passed":
                passed[name] = len(source)
        stats = pool.stats()
    for found, number in sorted(verdicts.items()):
        print(f"{found}: {number}")
    print(f"shortest: {min(passed, key=passed.__getitem__)}")
    print(f"{stats.started} guests were started, {stats.leases['ready']} were waiting")


if __name__ == "__main__":
    main()
