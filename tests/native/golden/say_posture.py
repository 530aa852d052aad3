# What the processes of a guest look like from inside it, for golden_posture.inside().
import collections
import json
import os
import resource


def read(path):
    with open(path, errors="surrogateescape") as file:
        return file.read()


def directory(pid):
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:  # init's
        return None


def kinds(pid):
    found = collections.Counter()
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            link = os.readlink(f"/proc/{pid}/fd/{number}")
        except OSError:  # the directory itself
            continue
        found[link.partition(":[")[0]] += 1
    return {kind: str(count) for kind, count in sorted(found.items())}


processes = [
    {
        "status": read(f"/proc/{pid}/status"),
        "mounts": read(f"/proc/{pid}/mountinfo"),
        "environment": read(f"/proc/{pid}/environ"),
        "directory": directory(pid),
        "descriptors": kinds(pid),
    }
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
]
names = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
limits = {
    name: " ".join(
        "unlimited" if value == resource.RLIM_INFINITY else str(value)
        for value in resource.getrlimit(getattr(resource, name))
    )
    for name in names
}
print(json.dumps({"processes": processes, "limits": limits}))
