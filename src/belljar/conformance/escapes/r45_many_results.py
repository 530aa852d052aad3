# row: 40, 45
# attempt: results without end
# expect: outcome=output_limit
# limits: output=64k
# oracle: flood
# control: simulated by flood
while True:
    display("x" * 1000)  # noqa: F821
