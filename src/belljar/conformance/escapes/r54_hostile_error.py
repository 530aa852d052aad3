# row: 54
# attempt: an error whose text, cause and notes are hostile
# expect: outcome=error|killed|exit
# control: simulated by verdict


class Hostile(Exception):
    @property
    def __cause__(self):
        return self

    __context__ = __cause__
    __notes__ = property(lambda self: [self] * 1000)

    def __str__(self):
        raise SystemExit(0)

    __repr__ = __str__

    def __getattribute__(self, name):
        if name == "__traceback__":
            raise KeyboardInterrupt
        return super().__getattribute__(name)


raise Hostile
