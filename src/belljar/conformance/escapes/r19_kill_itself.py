# row: 19
# attempt: end its own runner with SIGKILL
# expect: outcome=killed signal=9
# control: plain
# trips: exit -9
import os
import signal

os.kill(os.getpid(), signal.SIGKILL)
