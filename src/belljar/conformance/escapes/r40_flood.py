# row: 40
# attempt: flood both streams, from Python, from C and from a child
# expect: outcome=output_limit
# limits: output=64k
# oracle: flood
# control: plain
# trips: output
import os
import subprocess
import sys

subprocess.Popen(["sh", "-c", "yes >&2"])
while True:
    print("x" * 8000)
    sys.stderr.write("y" * 8000 + "\n")
    os.write(1, b"z" * 8000)
