# row: 21
# attempt: more threads than allowed
# expect: outcome=ok
# limits: processes=16
# larger: processes=60
# oracle: tasks
import threading
import time

threads = []
try:
    while len(threads) < 40:
        thread = threading.Thread(target=time.sleep, args=(30,), daemon=True)
        thread.start()
        threads.append(thread)
except RuntimeError as error:
    print("refused", error)
print(len(threads))
