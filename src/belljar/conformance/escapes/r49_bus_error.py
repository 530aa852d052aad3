# row: 49
# attempt: a mapping whose file has been cut off
# expect: outcome=killed signal=7
# oracle: core
# control: plain
# trips: exit -7
import mmap

with open("mapped", "w+b") as file:
    file.truncate(8192)
    area = mmap.mmap(file.fileno(), 8192)
    file.truncate(0)
area[4096]
