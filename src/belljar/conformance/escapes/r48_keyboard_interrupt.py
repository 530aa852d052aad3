# row: 48
# attempt: raise KeyboardInterrupt as if the caller had
# expect: outcome=error error=KeyboardInterrupt
# control: simulated by verdict
raise KeyboardInterrupt
