# row: 23, 28
# attempt: more in files that live in memory than the memory limit allows
# expect: outcome=out_of_memory
# expect-user: outcome=ok|out_of_memory
# limits: memory=64m
# larger: memory=512m
# oracle: memory
with open("/workspace/large", "wb", buffering=0) as file:
    for _ in range(150):
        file.write(b"x" * (1 << 20))
