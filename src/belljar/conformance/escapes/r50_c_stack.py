# row: 50
# attempt: overflow the C stack
# expect: outcome=killed|error
# within: 10
# timeout: 8
# control: simulated: test_control_of_the_verdict
import sys

sys.setrecursionlimit(10**9)
nested = []
for _ in range(300_000):
    nested = [nested]
repr(nested)
