# row: 17, 81
# attempt: take init's limits away; raise its own
# expect: outcome=ok
# control: simulated by verdict: the guest goes on as before
import os
import resource

from hostile import attempt

for kind in range(16):
    for pid in {1, os.getppid() or 1}:  # 0: it is outside, and 0 would mean itself
        attempt(f"{kind} of {pid}", lambda k=kind, p=pid: resource.prlimit(p, k, (1, 1)))
    soft, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        more = (soft, hard + 1)
        attempt(f"own {kind}", lambda k=kind, m=more: resource.setrlimit(k, m) or "raised")
attempt("init's priority", lambda: os.setpriority(os.PRIO_PROCESS, 1, 19) or "set")
