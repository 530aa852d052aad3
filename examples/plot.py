"""Files in, files out: a CSV goes in, a table and a picture come back.

Run it as `python examples/plot.py [DIRECTORY]`.
"""

import sys
from pathlib import Path

from belljar import Sandbox

CODE = """\
import pandas as pd
import matplotlib.pyplot as plt

data = pd.read_csv("input/growth.csv")
figure, axes = plt.subplots()
axes.bar(data.year, data.people)
figure.savefig("output/growth.png")
data.assign(change=data.people.pct_change().round(3)).to_csv("output/growth.csv", index=False)
"""


def main() -> None:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "plot-output")
    target.mkdir(parents=True, exist_ok=True)
    with Sandbox() as sandbox:
        # Relative paths are below /workspace; directories are made as needed.
        sandbox.files.write("input/growth.csv", "year,people\n2023,120\n2024,150\n2025,165\n")
        sandbox.files.make_dir("output")
        sandbox.run_code(CODE).raise_for_outcome()
        for entry in sandbox.files.list("output"):
            # entry.name is the guest's word: only these names are taken over.
            if entry.name in ("growth.csv", "growth.png"):
                content = sandbox.files.read(entry.path, format="bytes")
                (target / entry.name).write_bytes(content)
                print(f"{target / entry.name}: {len(content)} bytes")


if __name__ == "__main__":
    main()
