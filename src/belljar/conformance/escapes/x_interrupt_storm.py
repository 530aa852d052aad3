# row: 36
# attempt: interrupt its own runner without end, during the cell and after it
# expect: outcome=ok|error|killed
# next: later
# control: simulated by verdict
import os
import signal
import subprocess
import time

code = (
    "import os,time\n"
    "for _ in range(3000):\n"
    f"    os.kill({os.getpid()}, {int(signal.SIGINT)}); time.sleep(0.0002)\n"
)
storm = subprocess.Popen([__import__("sys").executable, "-c", code])
time.sleep(0.5)
