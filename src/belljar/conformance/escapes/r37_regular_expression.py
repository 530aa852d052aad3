# row: 37
# attempt: a regular expression that takes for ever
# expect: outcome=timeout
# timeout: 0.5
# within: 20
# control: plain
# trips: hang
import re

re.match(r"(a+)+$", "a" * 60 + "b")
