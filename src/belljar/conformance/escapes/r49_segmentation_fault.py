# row: 49
# attempt: read address 0
# expect: outcome=killed signal=11
# oracle: core
# control: plain
# trips: exit -11
import ctypes

ctypes.string_at(0)
