# row: 45, 51
# attempt: hear nothing more of init
# expect: outcome=killed|ok|timeout
# timeout: 2
# within: 10
# control: simulated by verdict
import socket

from hostile import worker

runner, _ = worker()
runner._control.shutdown(socket.SHUT_RD)
