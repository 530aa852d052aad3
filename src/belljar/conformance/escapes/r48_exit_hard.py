# row: 48
# attempt: leave with 0 as if all had gone well
# expect: outcome=killed exit_code=0
# control: plain
# trips: exit 0
import os

os._exit(0)
