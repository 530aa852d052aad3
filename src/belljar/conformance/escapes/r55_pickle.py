# row: 55
# attempt: a result that would run code on the host if it were unpickled there
# expect: outcome=ok
# control: simulated by unpickled: the same result, unpickled on purpose
import pickle

from hostile import target


class Bomb:
    def __reduce__(self):
        return open, (target("directory") + "/pickled", "w")


data = pickle.dumps(Bomb())
display(data)  # noqa: F821
[data, {"reduce": data}]  # noqa: B018
