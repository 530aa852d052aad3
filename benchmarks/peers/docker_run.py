"""A container for each run."""

from peers.engine import DockerRun

PEER = DockerRun()
