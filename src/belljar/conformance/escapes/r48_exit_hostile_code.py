# row: 48
# attempt: SystemExit whose code runs code when it is looked at
# expect: outcome=exit|error|killed
# control: simulated by verdict


class Code:
    def __str__(self):
        raise KeyboardInterrupt

    __repr__ = __int__ = __index__ = __str__


raise SystemExit(Code())
