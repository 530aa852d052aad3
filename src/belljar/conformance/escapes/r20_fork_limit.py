# row: 20
# attempt: more processes than allowed, each asleep
# expect: outcome=ok
# limits: processes=16
# larger: processes=60
# oracle: tasks
import os
import time

started = 0
try:
    while started < 40:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        started += 1
except OSError as error:
    print("refused", error)
print(started)
