# row: 71
# attempt: unix sockets in the file system: the engine's, the bus's, the display's
# expect: outcome=ok
# control: plain
# trips: hits
import socket

from hostile import attempt, target


def connect(path):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        return sock.recv(100)


for path in (
    target("unix"),
    "/proc/1/root" + target("unix"),
    "/var/run/docker.sock",
    "/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/dbus/system_bus_socket",
    "/run/systemd/private",
    "/tmp/.X11-unix/X0",
):
    attempt(path, lambda path=path: connect(path))
