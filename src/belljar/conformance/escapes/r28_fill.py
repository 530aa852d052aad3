# row: 28
# attempt: fill every writable place; a sparse file, then its content
# expect: outcome=ok
# limits: workspace=1m tmp=1m
# larger: workspace=8m tmp=8m
# oracle: disk
import os

for place in ("/workspace", "/tmp", "/dev/shm", "/home/user", "/var/tmp", "/run"):
    written = 0
    try:
        with open(f"{place}/sparse", "wb", buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, 4096)
            file.truncate(1 << 19)
            for _ in range(96):
                written += file.write(b"x" * 16384)
        with open(f"{place}/more", "wb", buffering=0) as file:
            for _ in range(96):
                written += file.write(b"x" * 16384)
    except OSError as error:
        print("refused", place, error)
    print(place, written)
