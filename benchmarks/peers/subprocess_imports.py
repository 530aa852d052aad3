"""A subprocess with the same imports."""

from peers.plain import Subprocess

PEER = Subprocess()
