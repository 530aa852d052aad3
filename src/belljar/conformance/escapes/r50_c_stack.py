# row: 50
# attempt: overflow the C stack
# expect: outcome=killed|error|timeout
# within: 40
# timeout: 20
# control: simulated by verdict
import sys

sys.setrecursionlimit(10**9)
nested = []
for _ in range(300_000):
    nested = [nested]
repr(nested)
