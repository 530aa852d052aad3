# row: 54
# attempt: a result whose text ends the runner
# expect: outcome=killed exit_code=9
# control: simulated by verdict
import os


class Deadly:
    def __repr__(self):
        os._exit(9)


Deadly()
