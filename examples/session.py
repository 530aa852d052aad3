"""Files that outlive a sandbox: a session kept by name, data mounted read-only, a tree copied out.

An analysis goes on tomorrow where it stopped today; nothing of the host is written but the
session's own directory and what is downloaded here.
"""

import tempfile
from pathlib import Path

from belljar import Mount, Sandbox
from belljar.files import sessions

COUNT = """
import csv, json, os
seen = json.load(open("seen.json")) if os.path.exists("seen.json") else {}
for name in sorted(os.listdir("/data")):
    with open(f"/data/{name}") as file:
        seen[name] = sum(int(row["sold"]) for row in csv.DictReader(file))
json.dump(seen, open("seen.json", "w"))
os.makedirs("report", exist_ok=True)
with open("report/total.txt", "w") as file:
    file.write(f"{len(seen)} days, {sum(seen.values())} sold")
"""


def main() -> None:
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory, "sales")
        data.mkdir()
        data.parent.chmod(0o755)  # a sandbox started by root has a uid of its own
        for day, sold in (("monday", 12), ("tuesday", 30)):
            (data / f"{day}.csv").write_text(f"item,sold\nbells,{sold}\n")
            # Each time a new sandbox, in which the files of the last one are.
            with Sandbox(
                environment="python", session="sales", mounts=[Mount(str(data), "/data")]
            ) as sandbox:
                execution = sandbox.run_code(COUNT).raise_for_outcome()
                print(f"after {day}:", sandbox.files.read("report/total.txt"))
                print("  the cell touched:", execution.files)
                write = sandbox.run_code("open('/data/forged.csv', 'w')")
                print("  writing to the data:", write.error.value if write.error else "worked")
                moved = sandbox.files.download("report", here / "session-output")
        print(f"brought here: {moved.files} file, {moved.size} bytes")
    sessions.remove("sales")


if __name__ == "__main__":
    main()
