"""Belljar on docker with gVisor's kernel."""

from peers.ours import Belljar

PEER = Belljar("docker-gvisor")
