"""The mounts of a guest in words that are the same on every machine: see golden_posture.py."""

import re
from collections import Counter
from pathlib import Path

import setting

_FLAGS = ("ro", "rw", "nosuid", "nodev", "noexec", "nosymfollow")
_MADE = ("ptmxmode", "max", "size", "nr_inodes", "mode", "uid", "gid")
_HOSTS = re.compile(r"/(usr|opt|bin|sbin|lib|lib32|lib64)(/|$)")
_DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9)}
_DEVICES |= {"tty": (5, 0)}


class Mount:
    """One line of mountinfo."""

    def __init__(self, line, who):
        before, _, after = line.partition(" - ")
        _, _, _, self.part, self.place, options, *tags = before.split()
        self.kind, _, rest = after.split(" ", 2)
        self.flags = " ".join(flag for flag in _FLAGS if flag in options.split(","))
        # Only what leads out would be of interest in a container, whose root is its engine's.
        words = {tag.partition(":")[0] for tag in tags} - ({"master"} if setting.DOCKER else set())
        self.flags += "".join(f" {word}" for word in sorted(words))
        pairs = dict(word.partition("=")[::2] for word in rest.split(","))
        pairs |= {name: who(int(pairs[name])) for name in ("uid", "gid") if name in pairs}
        self.made = " ".join(f"{name}={pairs[name]}" for name in _MADE if name in pairs)

    @property
    def name(self):
        """Which mask of /proc it is, if it is one."""
        found = re.fullmatch(r"/proc/([^/]+)", self.place)
        return found and found[1]

    @property
    def mask(self):
        part = self.part if not setting.DOCKER or self.kind == "proc" else Path(self.part).name
        return f"{self.flags}: {self.kind} {part or '/'}"

    def __str__(self):
        if self.kind == "tmpfs":
            part = f", {self.part} of it" if self.part != "/" else ""
            return f"{self.place}: tmpfs {self.flags} {self.made}{part}".rstrip()
        if self.kind == "devpts" and not setting.DOCKER:
            return f"{self.place}: devpts {self.flags} {self.made}"
        if self.kind in ("9p", "gofer"):
            return f"{self.place}: gVisor's file server, {self.flags}"
        if self.place == "/":
            return f"/: the image, {self.flags}"
        if self.place.startswith("/etc/"):
            return f"{self.place}: the engine's, {self.flags.split()[0]}"
        return f"{self.place}: {self.kind} {self.flags}"

    @property
    def of_the_host(self):
        """The class of what is bound below /usr and /opt, where hosts differ."""
        if self.kind == "tmpfs" and self.part == "/":
            return f"an empty tmpfs over it, {self.flags} size={self.made.partition('=')[2][:2]}"
        if self.place.startswith("/opt/"):
            return f"below /opt: {self.flags}"
        same = self.part.endswith(self.place) or self.place.endswith(self.part)
        return f"{'the same directory' if same else self.part}: {self.flags}"


def mount_table(text, who):
    """All mounts as lines by place, those over one another numbered; the masks of /proc by name;
    and the classes of what is the host's."""
    rows = [Mount(line, who) for line in text.splitlines()]
    masks = dict(sorted((row.name, row.mask) for row in rows if row.name))
    classes, lines, seen = set(), [], Counter()
    # Control groups, which differ from host to host, are below something that hides them.
    hidden = any(row.place == "/sys" and row.kind == "tmpfs" for row in rows)
    for row in rows:
        if row.name or (hidden and row.place.startswith("/sys/fs/cgroup")):
            continue
        if _HOSTS.match(row.place) and not setting.GVISOR:
            classes.add(row.of_the_host)
            continue
        seen[row.place] += 1
        nth = f" ({seen[row.place]}, over the one before)" if seen[row.place] > 1 else ""
        line = str(row)
        if not setting.DOCKER and row.place[len("/dev/") :] in _DEVICES:
            line = f"{row.place}: a device, {row.flags}"
        lines.append(line.replace(":", f"{nth}:", 1))
    found = {"all": sorted(lines), "masks of proc": masks, "programs of the host": sorted(classes)}
    return {name: value for name, value in found.items() if value}
