"""Belljar, natively and awaited."""

from peers.ours import Awaited

PEER = Awaited()
