"""`python -c`: the interpreter's own start, without pandas."""

from peers.plain import Bare

PEER = Bare()
