"""Belljar from a pool of containers."""

from peers.pooled import Pooled

PEER = Pooled("docker")
