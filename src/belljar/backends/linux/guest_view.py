"""The /etc of native guests: small files of our own, the same on every host.

The host's files would reveal its users, its name and its services, and a minimal host lacks some of
them. These files have what programs ask the C library for: users, names, ports, protocols.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from belljar.limits import Limits

_PROTOCOLS = {
    **{"ip": 0, "icmp": 1, "igmp": 2, "ipencap": 4, "tcp": 6, "egp": 8, "igp": 9, "udp": 17},
    **{"dccp": 33, "ipv6": 41, "ipv6-route": 43, "ipv6-frag": 44, "rsvp": 46, "gre": 47},
    **{"esp": 50, "ah": 51, "ipv6-icmp": 58, "ipv6-nonxt": 59, "ipv6-opts": 60, "ospf": 89},
    **{"pim": 103, "vrrp": 112, "l2tp": 115, "sctp": 132, "udplite": 136},
}

_TCP = {
    **{"echo": 7, "discard": 9, "daytime": 13, "ftp-data": 20, "ftp": 21, "ssh": 22, "telnet": 23},
    **{"smtp": 25, "time": 37, "whois": 43, "domain": 53, "finger": 79, "http": 80},
    **{"kerberos": 88, "pop3": 110, "sunrpc": 111, "nntp": 119, "imap2": 143, "snmp": 161},
    **{"bgp": 179, "ldap": 389, "https": 443, "submissions": 465, "submission": 587, "ldaps": 636},
    **{"domain-s": 853, "rsync": 873, "ftps": 990, "imaps": 993, "pop3s": 995, "socks": 1080},
    **{"ms-sql-s": 1433, "nfs": 2049, "mysql": 3306, "svn": 3690, "xmpp-client": 5222},
    **{"postgresql": 5432, "amqps": 5671, "amqp": 5672, "redis": 6379, "http-alt": 8080},
}
_UDP = {
    **{"echo": 7, "discard": 9, "daytime": 13, "time": 37, "domain": 53, "bootps": 67},
    **{"bootpc": 68, "tftp": 69, "kerberos": 88, "sunrpc": 111, "ntp": 123, "snmp": 161},
    **{"snmp-trap": 162, "ldap": 389, "https": 443, "syslog": 514, "openvpn": 1194},
    **{"radius": 1812, "nfs": 2049, "sip": 5060, "mdns": 5353},
}
_ALIASES = {"http": "www", "imap2": "imap", "smtp": "mail", "submissions": "smtps"}


def _services() -> str:
    rows = [(port, "tcp", name) for name, port in _TCP.items()]
    rows += [(port, "udp", name) for name, port in _UDP.items()]
    return "".join(
        f"{name} {port}/{kind} {_ALIASES.get(name, '')}".rstrip() + "\n"
        for port, kind, name in sorted(rows)
    )


HOME = "/home/user"
# Where a guest has files beside /tmp, unless the caller has put something else there.
PLACES = (HOME, "/var/tmp")
SHELL = "/bin/bash"


def own_places(taken: Iterable[str]) -> list[str]:
    """PLACES, but where the caller's mounts or the workspace are in their place."""
    found = set(taken)
    return [place for place in PLACES if place not in found]


USER = "user"
_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


def user_name(env: Mapping[str, str]) -> str:
    """The name of the guest's user: what the caller says in the variable USER, if it is a name."""
    given = env.get("USER", USER)
    return given if _NAME.fullmatch(given) and given != "root" else USER


def passwd(uid: int, shell: str = SHELL, name: str = USER) -> str:
    """/etc/passwd: the guest's user has a name, which programs ask for."""
    root = "root:x:0:0:root:/root:/usr/sbin/nologin"
    return f"{root}\n{name}:x:{uid}:{uid}::{HOME}:{shell}\n"


def group(gid: int = 1000, name: str = USER) -> str:
    return f"root:x:0:\n{name}:x:{gid}:\n"


FILES = {
    "passwd": passwd(1000),
    "group": group(),
    "hosts": "127.0.0.1 localhost belljar\n::1 localhost\n",
    "hostname": "belljar\n",
    "resolv.conf": "",
    "nsswitch.conf": "".join(
        f"{name}: files\n" for name in ("passwd", "group", "hosts", "services", "protocols")
    ),
    "os-release": 'NAME="Belljar"\nID=belljar\n',
    "protocols": "".join(f"{name} {no} {name.upper()}\n" for name, no in _PROTOCOLS.items()),
    "services": _services(),
    # Without it fc-list, which matplotlib runs, complains on standard error.
    "fonts/fonts.conf": "<fontconfig><dir>/usr/share/fonts</dir>"
    "<cachedir>/tmp/.fontconfig</cachedir></fontconfig>\n",
}


GUEST_ENV = "/opt/env"
GUEST_PYTHON_PREFIX = "/opt/python"
# What a guest's environment holds, beside PATH and what the caller adds.
VARIABLES = {
    "HOME": HOME,
    "USER": USER,
    "LOGNAME": USER,
    "SHELL": SHELL,
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "TERM": "dumb",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "MPLBACKEND": "Agg",
    "MPLCONFIGDIR": "/tmp/.matplotlib",
    # One thread each: more cannot survive the fork that makes a guest.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
PATH = f"{GUEST_ENV}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


def rlimits(limits: Limits) -> dict[str, int]:
    """Of all processes of a guest. Open files and memory are for the code only, not for init."""
    return {
        # Not 0, which does not stop a core_pattern that pipes to a program; 1 stops both.
        "RLIMIT_CORE": 1,
        "RLIMIT_NPROC": limits.processes + 1,  # and init
        "RLIMIT_MSGQUEUE": 819200,
        "RLIMIT_MEMLOCK": 65536,
        "RLIMIT_SIGPENDING": 1024,
        "RLIMIT_RTPRIO": 0,
        "RLIMIT_NICE": 0,
        "RLIMIT_FSIZE": max(limits.workspace, limits.tmp),
    }
