# row: 50
# attempt: recursion without end
# expect: outcome=error error=RecursionError
# control: simulated by verdict


def deeper():
    deeper()


deeper()
