# row: 45, 51
# attempt: close one direction of the runner's socket
# expect: outcome=killed
# control: simulated by verdict
import socket

from hostile import worker

runner, _ = worker()
runner._control.shutdown(socket.SHUT_WR)
