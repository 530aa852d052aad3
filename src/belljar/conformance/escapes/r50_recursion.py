# row: 50
# attempt: recursion without end
# expect: outcome=error error=RecursionError
# control: simulated: test_control_of_the_verdict


def deeper():
    deeper()


deeper()
