"""Everything a sandbox did, in a file: run again to see what differs, made a page to look at."""

from pathlib import Path

from belljar import Sandbox, replay
from belljar.record import read
from belljar.record.export import render

OUTPUT = Path("record-output")


def main() -> None:
    OUTPUT.mkdir(exist_ok=True)
    path = OUTPUT / "session.jsonl"
    path.unlink(missing_ok=True)  # else this session would be appended to the last one

    with Sandbox(environment="data", record=path) as sandbox:
        sandbox.files.write("sales.csv", "region,sales\nnorth,12\nsouth,30\n")
        sandbox.run_code("import pandas as pd\nframe = pd.read_csv('sales.csv')\nframe")
        sandbox.run_code("frame.plot.bar(x='region', title='Sales')")
        sandbox.run_code("import random\nround(random.random(), 9)")  # without a seed
        sandbox.run_code("frame['profit']")  # there is no such column
    print(f"{len(read(path).cells)} cells recorded")

    for cell in replay(path).cells:
        print(f"cell {cell.recorded.number}:", "same" if cell.same else "differs")
        for difference in cell.differences:
            print(" ", difference)

    page = OUTPUT / "session.html"
    page.write_text(render(read(path), "html"))
    print("look at", page)


if __name__ == "__main__":
    main()
