"""Golden files of postures: read, rewritten, compared; and what a guest may change of itself."""

import json
import os

import oracles
import setting
from project import TESTS

REWRITE = "BELLJAR_TEST_REWRITE_GOLDEN"
BEFORE = "before its first cell"
MASKS = "mounts > masks of proc > "
# A host without packages of its own Python has nothing there to be hidden.
HOSTS = "mounts > programs of the host has an empty tmpfs"
# Not every kernel has these: they are compared if both sides have them. And of the masks of /proc,
# those of files that this kernel has.
KERNEL = (
    "seccomp > filters",
    "namespaces > time",
    "namespaces > time_for_children",
)


def path_of(name):
    return TESTS / "native" / "golden" / f"posture-{name}.json"


def load(name, *, new=False):
    """The posture of a guest that runs code; `new`: of one, or of a worker, that ran none yet."""
    golden = json.loads(path_of(name).read_text())
    for path, value in golden.pop(BEFORE, {}).items():
        *way, last = path.split(" > ")
        place = golden
        for key in way:
            place = place[key]
        if new:
            place[last] = value
    return golden


def store(name, posture, before):
    """What was written by hand stays if it is still true: the alternatives."""
    old = json.loads(path_of(name).read_text()) if path_of(name).exists() else {}
    first = flat(before)
    posture = {**posture, BEFORE: {path: first[path] for path in compare(posture, before)}}
    text = json.dumps(_keep_alternatives(old, posture), indent=2, ensure_ascii=False) + "\n"
    changed = not path_of(name).exists() or text != path_of(name).read_text()
    path_of(name).parent.mkdir(exist_ok=True)
    path_of(name).write_text(text)
    return changed


def _keep_alternatives(old, new):
    if isinstance(old, dict) and new in old.get("either", ()):
        return old
    if isinstance(new, dict):
        before = old if isinstance(old, dict) else {}
        return {key: _keep_alternatives(before.get(key), value) for key, value in new.items()}
    return new


# --- comparing -----------------------------------------------------------------------------------


def flat(value, path=""):
    """Path -> text. The items of a list are paths too: what is added or missing shows by itself."""
    if isinstance(value, dict) and "either" not in value:
        rows = {}
        for key, item in value.items():
            rows |= flat(item, f"{path} > {key}" if path else key)
        return rows
    if isinstance(value, list):
        return {f"{path} has {item}": "yes" for item in value}
    return {path: value}


def compare(golden, found):
    """Path -> what is wrong there. Empty: nothing is."""
    wanted, seen = flat(golden), flat(found)
    paths = sorted(wanted.keys() | seen.keys())
    lines = {path: _difference(path, wanted.get(path), seen.get(path), wanted) for path in paths}
    return {path: f"{path}: {line}" for path, line in lines.items() if line}


def differences(golden, found):
    return list(compare(golden, found).values())


def _difference(path, golden, found, wanted):
    if golden is None:
        new_mask = path.startswith(MASKS) and found in masks_of(wanted)
        return None if new_mask or path.endswith(KERNEL) else f"unknown, {found!r}"
    if found is None:
        absent = path.startswith(MASKS) and not os.path.lexists(f"/proc/{path[len(MASKS) :]}")
        absent = absent or path.startswith(HOSTS)
        return None if absent or path.endswith(KERNEL) else f"missing, {golden!r}"
    if found in (golden["either"] if isinstance(golden, dict) else (golden,)):
        return None
    return f"should be {golden!r}, is {found!r}"


def masks_of(wanted):
    """How files and directories of /proc are hidden: what one with a content of its own has, is
    not one of them."""
    values = [value for path, value in wanted.items() if path.startswith(MASKS)]
    return {value for value in values if values.count(value) > 1}


# --- what a guest may change of itself -----------------------------------------------------------


def _lowered(golden, found, before):
    """What the hard limit was is the most that either may be."""
    if golden is None or found is None or before is None:
        return False
    most = _number(before.split()[1])
    return found == "inherited" or all(_number(word) <= most for word in found.split())


def _number(word):
    return float("inf") if word == "unlimited" else int(word)


def _harmless(golden, found, before):
    return found is None or not oracles.unusual(found.partition(",")[0])


def _any(golden, found, before):
    return True


# Of the worker and of what it starts; of init nothing. Path -> which change.
OWN = {
    "directory": lambda golden, found, before: found.startswith("/"),
    "umask": _any,
    "descriptors > ": _harmless,
    "limits > ": _lowered,
    "session > leads its session": _any,
    "session > leads its group": _any,
    "signals > ": _any,
    "scheduling > niceness": lambda golden, found, before: int(found) >= int(golden),
    # Down to what it had when it was made, which is init's.
    "scheduling > score for being killed": lambda golden, found, before: int(found) >= before,
    # Of programs it starts; and a process can overwrite what the kernel shows as its own.
    "environment > ": lambda golden, found, before: found is None or "CANARY" not in found,
}
if setting.COUNTED:  # else they are the caller's in either case
    # When it says that it is not to be dumped, they are no longer its own.
    OWN["files in proc are"] = lambda golden, found, before: found in ("root's", "zygote's")


def drift(golden, found, ready):
    """What is not as the golden file says, and is not the guest's own affair; and what is.

    `ready` has the limits and the score that this guest began with.
    """
    wrong, own = [], []
    for name, value in found.items():
        if not name.startswith(("worker", "other")):
            role = name if name in golden else name.partition(" ")[0]
            wrong += differences({name: golden.get(role)}, {name: value})
            continue
        wanted, seen = flat(golden["worker"]), flat(value)
        for path, line in compare(golden["worker"], value).items():
            if _is_own(path, wanted.get(path), seen.get(path), ready.get(path)):
                own.append(path)
            else:
                wrong.append(f"{name} > {line}")
    missing = {name for name in golden if name != "other"} - found.keys()
    return wrong + [f"{name}: it is gone" for name in sorted(missing)], own


def _is_own(path, golden, found, before):
    for prefix, allows in OWN.items():
        if path == prefix or (prefix.endswith(" > ") and path.startswith(prefix)):
            return allows(golden, found, before)
    return False
