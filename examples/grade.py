"""Grading submissions: each in a sandbox of its own, with limits, none of them trusted."""

from belljar import Execution, Limits, Outcome, Sandbox

TASK_TEST = "[is_prime(n) for n in range(10)]"
RIGHT = [False, False, True, True, False, True, False, True, False, False]

SUBMISSIONS = {
    "ada": "def is_prime(n):\n    return n > 1 and all(n % d for d in range(2, n))",
    "bob": "def is_prime(n):\n    return n % 2 == 1",
    "cyd": "def is_prime(n):\n    while True:\n        pass",
    "dan": "def is_prime(n):\n    return [0] * 10**12",
    "eve": "import os\nos._exit(0)",
    "fay": "import socket\nsocket.create_connection(('192.0.2.1', 80), 2)",
    "gus": "def is_prime(n)\n    return True",
}

LIMITS = Limits(timeout=5, processes=8, open_files=64, output="64k")

VERDICTS = {
    Outcome.timeout: "too slow",
    Outcome.out_of_memory: "too much memory",
    Outcome.output_limit: "too much output",
    Outcome.killed: "ended its own process",
}


def grade(source: str) -> str:
    with Sandbox(environment="python", limits=LIMITS) as sandbox:
        loaded = sandbox.run_code(source)
        tested = sandbox.run_code(TASK_TEST) if loaded.ok else loaded
    # `value` is data that the submission may have made up, so it is compared, never trusted.
    return "passed" if tested.ok and tested.value == RIGHT else explain(tested)


def explain(execution: Execution) -> str:
    if execution.error is not None and execution.outcome is Outcome.error:
        return f"{execution.error.name}: {execution.error.value}"
    return VERDICTS.get(execution.outcome, "wrong answer" if execution.ok else execution.outcome)


def main() -> None:
    for name, source in SUBMISSIONS.items():
        print(f"{name}: {grade(source)}")


if __name__ == "__main__":
    main()
