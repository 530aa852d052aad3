"""A container for each run, on gVisor's kernel."""

from peers.engine import DockerRun

PEER = DockerRun("runsc")
