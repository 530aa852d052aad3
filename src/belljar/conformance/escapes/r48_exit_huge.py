# row: 48
# attempt: SystemExit with a code that is no exit code
# expect: outcome=exit|error
# control: simulated: test_control_of_the_verdict
raise SystemExit(10**400)
