# row: 42
# attempt: wait for standard input, then close it
# expect: outcome=ok
# control: plain
# trips: hang
import os
import subprocess
import sys

print(repr(sys.stdin.read() if sys.stdin else None))
try:
    input("? ")
except EOFError as error:
    print(error)
print(subprocess.run(["cat"], capture_output=True).stdout)
os.close(0)
