"""Belljar from a pool, natively."""

from peers.pooled import Pooled

PEER = Pooled()
