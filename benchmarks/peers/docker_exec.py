"""A container that waits, entered for each run."""

from peers.engine import DockerExec

PEER = DockerExec()
