# row: 23
# attempt: memory in a file that is mapped nowhere
# expect: outcome=out_of_memory
# expect-user: outcome=error error=PermissionError
# limits: memory=64m
# larger: memory=512m
# oracle: memory
import os

fd = os.memfd_create("bomb")
for _ in range(25):
    os.write(fd, b"x" * (8 << 20))
