"""Try, and take it back: a search over ways to clean a table, each step from the best so far."""

from belljar import Sandbox

PREPARE = """
import io
import pandas as pd

text = "city,population\\nBerlin,3 645 000\\nHamburg,n/a\\nMunich,1 488 000\\nMunich,1 488 000\\n"
table = pd.read_csv(io.StringIO(text))

def score():
    \"\"\"Numbers are good, gaps and repetitions are bad.\"\"\"
    column = table["population"]
    numbers = pd.to_numeric(column, errors="coerce")
    return int(numbers.notna().sum() - numbers.isna().sum() - 2 * table.duplicated().sum())
"""

STEPS = {
    "forget the names": "del table['city']; table['population'] / 2",
    "make numbers": "table['population'] = pd.to_numeric("
    "table['population'].str.replace(' ', ''), errors='coerce')",
    "drop gaps": "table = table.dropna()",
    "drop repetitions": "table = table.drop_duplicates()",
    "drop all": "table = table.iloc[:0]",
}


def main() -> None:
    with Sandbox() as sandbox:
        sandbox.run_code(PREPARE).raise_for_outcome()
        best, todo = sandbox.run_code("score()").value, dict(STEPS)
        print(f"score at first: {best}")
        while todo:
            start = sandbox.checkpoint()
            scores = {}
            for name, code in todo.items():
                # What fails has changed nothing; what works is tried, measured, taken back.
                if sandbox.run_code(code, undo_on_error=True).ok:
                    scores[name] = sandbox.run_code("score()").value
                    sandbox.rollback(start)
            name = max(scores, key=scores.__getitem__, default="")
            if not scores or scores[name] <= best:
                break
            best = scores[name]
            sandbox.run_code(todo.pop(name)).raise_for_outcome()
            sandbox.release(start)
            print(f"{name}: {best}")

        # Two ways to go on, side by side: each has variables and files of its own.
        with sandbox.fork() as other:
            sandbox.run_code("table.to_csv('clean.csv', index=False)").raise_for_outcome()
            other.run_code("table.to_json('clean.json', orient='records')").raise_for_outcome()
            print("here:", *(entry.name for entry in sandbox.files.list()))
            print("in the fork:", *(entry.name for entry in other.files.list()))
        print(sandbox.files.read("clean.csv"))


if __name__ == "__main__":
    main()
