# row: 29
# attempt: empty files without end
# expect: outcome=ok
# within: 70
# timeout: 60
# oracle: disk
# control: simulated by itself: the files that were made are counted from outside
import os

made = 0
for place, most in (("/dev/shm", 10_000), ("/tmp", 20_000), ("/workspace", 70_000)):
    try:
        for number in range(most):
            os.close(os.open(f"{place}/{number}", os.O_CREAT | os.O_WRONLY))
            made += 1
    except OSError as error:
        print("refused", place, number, error)
    else:
        print("ACHIEVED", most, "files in", place)
