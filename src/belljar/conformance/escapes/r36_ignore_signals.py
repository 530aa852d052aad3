# row: 36
# attempt: sleep for ever, with every signal ignored and blocked
# expect: outcome=timeout
# timeout: 0.5
# within: 20
# control: plain
# trips: hang
import signal
import time

for number in range(1, 32):
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_SETMASK, range(1, 65))
while True:
    time.sleep(60)
