# row: 48
# attempt: SystemExit with a code that is no exit code
# expect: outcome=exit|error
# control: simulated by verdict
raise SystemExit(10**400)
