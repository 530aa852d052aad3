# row: 13
# attempt: become root by system calls, setuid programs and file capabilities
# expect: outcome=ok
# control: saved-root
# trips: posture
import os
import subprocess

from hostile import CONFINED, attempt

for number in (0, 1, 999, 65534):
    attempt(f"setuid {number}", lambda number=number: os.setuid(number) or "done")
    attempt(f"setgid {number}", lambda number=number: os.setgid(number) or "done")
attempt("setresuid", lambda: os.setresuid(0, 0, 0) or "done")
attempt("setgroups", lambda: os.setgroups([0]) or "done")
if CONFINED:
    for program in (["su", "-c", "id -u"], ["mount"], ["passwd", "-S"], ["sudo", "-n", "id", "-u"]):
        try:
            done = subprocess.run(program, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        except OSError as error:
            print("refused", error)
            continue
        if done.stdout.strip() == "0":
            print("ACHIEVED root by", program)
    with open("/usr/bin/id", "rb") as source, open("suid", "wb") as copy:
        copy.write(source.read())
    os.chmod("suid", 0o6755)
    print(subprocess.run(["./suid"], capture_output=True, text=True).stdout)
    attempt("capability", lambda: os.setxattr("suid", "security.capability", b"\1" * 20) or "set")
