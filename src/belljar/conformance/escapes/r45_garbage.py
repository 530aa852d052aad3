# row: 45
# attempt: random bytes on every descriptor
# expect: outcome=killed|ok|output_limit
# control: simulated by verdict
import os

for _ in range(20):
    for number in range(3, 64):
        try:
            os.set_blocking(number, False)
            os.write(number, os.urandom(4096))
        except OSError:
            continue
