# row: 20
# attempt: a fork bomb
# expect: outcome=timeout|killed|error
# limits: processes=24
# timeout: 1
# within: 10
# oracle: tasks
# control: simulated by r20_fork_limit: never run unconfined
import os

from hostile import CONFINED

while CONFINED:
    try:
        os.fork()
    except OSError:
        continue
