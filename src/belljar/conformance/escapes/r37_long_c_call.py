# row: 37
# attempt: one call into C that never comes back
# expect: outcome=timeout
# timeout: 0.5
# within: 20
# control: plain
# trips: hang
sum(range(10**12))
