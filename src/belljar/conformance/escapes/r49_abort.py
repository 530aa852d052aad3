# row: 49
# attempt: abort
# expect: outcome=killed signal=6
# oracle: core
# control: plain
# trips: exit -6
import os

os.abort()
