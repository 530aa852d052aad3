# row: 54
# attempt: a result whose text never comes
# expect: outcome=timeout
# timeout: 0.5
# within: 20
# control: simulated by verdict


class Endless:
    def __repr__(self):
        while True:
            pass


Endless()
