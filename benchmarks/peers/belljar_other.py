"""Belljar, natively, with another Python in its guests."""

from peers.ours import OtherPython

PEER = OtherPython()
