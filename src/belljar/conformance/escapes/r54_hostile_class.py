# row: 54
# attempt: a result that lies about its class, its attributes, its length
# expect: outcome=ok|error|exit
# control: simulated by verdict


class Meta(type):
    def __getattribute__(cls, name):
        if name in ("__module__", "__qualname__", "__name__", "_repr_html_"):
            raise SystemExit(0)
        return super().__getattribute__(name)

    def __instancecheck__(cls, instance):
        raise MemoryError

    def __repr__(cls):
        return "\ud800" * 10


class Liar(metaclass=Meta):
    __class__ = dict

    def __getattr__(self, name):
        return self

    def __call__(self, *args):
        return self

    def __len__(self):
        return -1

    def __repr__(self):
        return 5


Liar()
