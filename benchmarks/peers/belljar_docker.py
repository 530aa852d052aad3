"""Belljar on docker."""

from peers.ours import Belljar

PEER = Belljar("docker")
