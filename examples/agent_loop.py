"""An agent loop: run what the model wrote, hand the error back, until it works.

The "model" here is a list of replies, so that the example runs without one.
"""

from belljar import Execution, Sandbox

QUESTION = "What is the mean temperature in readings.csv?"
READINGS = "time,temperature\n08:00,20.5\n09:00,n/a\n10:00,23.5\n"

REPLIES = iter(
    [
        "import pandas as pd\npd.read_csv('reading.csv').temperature.mean()",
        "import pandas as pd\nreadings = pd.read_csv('readings.csv', keep_default_na=False)\n"
        "readings.temperature.mean()",
        "float(pd.to_numeric(readings.temperature, errors='coerce').mean())",
    ]
)


def model(conversation: list[str]) -> str:
    """Stands for a call to a language model."""
    return next(REPLIES)


def feedback(execution: Execution) -> str:
    """What the model is told: outcome, output, and the traceback into its own code."""
    told = f"outcome: {execution.outcome}\n{execution.stdout}{execution.stderr}"
    return told + (execution.error.traceback if execution.error else "")


def main() -> None:
    conversation = [QUESTION]
    with Sandbox() as sandbox:
        sandbox.files.write("readings.csv", READINGS)
        for attempt in range(1, 6):
            execution = sandbox.run_code(model(conversation), timeout=10)
            if execution.ok:
                print(f"attempt {attempt}: the answer is {execution.value}")
                return
            print(f"attempt {attempt}: {execution!r}")
            # Variables that were made before the error are still there for the next attempt.
            conversation.append(feedback(execution))


if __name__ == "__main__":
    main()
