# row: 15, 19
# attempt: end or stop init with every signal, by every call that sends one
# expect: outcome=ok
# control: simulated by verdict: never run unconfined
import fcntl
import os
import signal
import socket

from hostile import CONFINED

if CONFINED:
    for number in range(1, 65):
        for _ in range(5):
            os.kill(1, number)
    pidfd = os.pidfd_open(1)
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGCHLD):
        signal.pidfd_send_signal(pidfd, number)
    left, right = socket.socketpair()
    fcntl.fcntl(left, fcntl.F_SETOWN, 1)
    for number in (signal.SIGKILL, signal.SIGSTOP, 0, signal.SIGABRT):
        fcntl.fcntl(left, 10, int(number))  # F_SETSIG
        fcntl.fcntl(left, fcntl.F_SETFL, fcntl.fcntl(left, fcntl.F_GETFL) | os.O_ASYNC)
        right.send(b"x")
