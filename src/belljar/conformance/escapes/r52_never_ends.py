# row: 52
# attempt: hang at the end: atexit, a finaliser, a thread that is waited for
# expect: outcome=ok
# control: simulated by verdict
import atexit
import threading
import time

atexit.register(time.sleep, 1000)


class Stubborn:
    def __del__(self):
        time.sleep(1000)


stubborn = Stubborn()
threading.Thread(target=time.sleep, args=(1000,)).start()
