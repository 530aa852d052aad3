"""Belljar, natively."""

from peers.ours import Belljar

PEER = Belljar()
