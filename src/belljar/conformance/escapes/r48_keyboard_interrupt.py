# row: 48
# attempt: raise KeyboardInterrupt as if the caller had
# expect: outcome=error error=KeyboardInterrupt
# control: simulated: test_control_of_the_verdict
raise KeyboardInterrupt
