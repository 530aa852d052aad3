# Everything that code may change of its own processes, so that the test sees each one allowed.
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time

libc = ctypes.CDLL(None, use_errno=True)


def change():
    os.chdir("/tmp")
    os.umask(0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    resource.setrlimit(resource.RLIMIT_CPU, (1000, 1000))
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    for number, attempt in enumerate(ATTEMPTS):
        try:
            attempt()
        except OSError as error:
            print("refused", number, error)
    kept.append(os.open("/workspace/file", os.O_CREAT | os.O_WRONLY))
    kept.append(os.dup(1))
    kept.append(os.pipe())
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()


def score():
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("900")


ATTEMPTS = [
    lambda: os.nice(5),
    lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)),
    lambda: os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]),
    score,
    lambda: libc.prctl(15, b"another name", 0, 0, 0),  # PR_SET_NAME
    lambda: libc.prctl(1, signal.SIGKILL, 0, 0, 0),  # PR_SET_PDEATHSIG
    lambda: libc.prctl(29, 1, 0, 0, 0),  # PR_SET_TIMERSLACK
]
kept = []
if os.fork() == 0:
    os.setsid()
    change()
    libc.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
    time.sleep(60)
    os._exit(0)
subprocess.Popen(["sleep", "60"], env={"OF": "its own"})
change()
sys.stdout.flush()
