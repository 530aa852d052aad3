# row: 32
# attempt: use up all descriptors
# expect: outcome=ok|error|killed
# limits: open_files=64
# larger: open_files=200
# oracle: descriptors
import os

opened = []
try:
    while len(opened) < 150:
        opened.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    print("refused", error)
