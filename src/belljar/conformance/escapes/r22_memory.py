# row: 22
# attempt: anonymous memory without end
# expect: outcome=out_of_memory
# limits: memory=64m
# larger: memory=512m
# oracle: memory
held = []
while len(held) < 25:
    held.append(bytearray(b"x" * (8 << 20)))
