# row: 48
# attempt: sys.exit in a cell
# expect: outcome=exit exit_code=3
# control: plain
# trips: exit 3
import sys

sys.exit(3)
