# row: 51
# attempt: close every descriptor
# expect: outcome=killed
# control: simulated by verdict
import os

os.closerange(0, 1000)
