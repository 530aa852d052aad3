# row: 51
# attempt: put other descriptors over the runner's socket
# expect: outcome=killed
# control: simulated by verdict
import os

from hostile import worker

runner, _ = worker()
reading, writing = os.pipe()
os.dup2(writing, runner._control.fileno())
