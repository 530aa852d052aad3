# row: 41
# attempt: one line that never ends
# expect: outcome=output_limit
# limits: output=64k
# oracle: flood
# control: plain
# trips: output
import os

while True:
    os.write(1, b"x" * 65536)
