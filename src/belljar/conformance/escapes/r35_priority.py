# row: 35
# attempt: run before everybody else: nice, real-time, other processors
# expect: outcome=ok
# control: plain
# trips: posture
import os

from hostile import attempt

attempt("nice", lambda: os.setpriority(os.PRIO_PROCESS, 0, -20) or "done")
attempt("nice of all", lambda: os.setpriority(os.PRIO_USER, 0, -20) or "done")
for policy in (os.SCHED_FIFO, os.SCHED_RR):
    attempt("real time", lambda p=policy: os.sched_setscheduler(0, p, os.sched_param(10)) or "done")
attempt("batch", lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)) or "done")
attempt("processors", lambda: os.sched_setaffinity(0, [0]) or "done")
