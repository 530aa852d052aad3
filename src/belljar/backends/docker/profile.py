"""Files for a container: the seccomp profile in the engine's form, and who its user is.

The profile is linux/seccomp.json for one machine, as JSON text. An engine hands it to libseccomp,
which has no order of rules: of two that contradict each other it silently drops one. So the rules
that `deny` puts before the profile's own are combined here: each combination of the bits that any
of them looks at becomes one rule, with the action of the first rule that matches. No two overlap.

Engines before 22.06 ignore `defaultErrnoRet` and answer EPERM where no rule matches. Programs take
EPERM for a refusal and give up; ENOSYS would let them fall back. So every system call without a
rule is listed as absent. Only unknown forms of known calls (a prctl option that no rule names) are
left to the default: there such an engine answers EPERM.

The files passwd and group give the container's user a name, for programs that ask for it (`whoami`,
Python's `pwd`): each guest has a uid that no image knows. They are mounted over the image's,
read-only. The engine takes a path and opens it when the container starts, so the files exist only
until then. A process id in their names shows which files a killed process left.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from belljar.backends.linux import guest_view, seccomp
from belljar.backends.linux.safe_dir import write_file
from belljar.backends.linux.seccomp import Condition, Rule
from belljar.environment.store import cache_root
from belljar.errors import BackendUnavailable

_ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
_ENOSYS = 38
_ABSENT = seccomp.ERRNO | _ENOSYS
_MAX_BITS = 8  # of all arguments that the rules of one call look at


@lru_cache(maxsize=16)
def render_profile(machine: str, *, deny: tuple[str | Rule, ...] = ()) -> str:
    """The profile for `machine`; `deny` as for linux.seccomp.compile_profile."""
    if machine not in _ARCHITECTURES:
        raise BackendUnavailable(
            f"there is no seccomp profile for {machine!r}, the machine of the engine",
            hint=f"an engine on one of {', '.join(_ARCHITECTURES)}",
        )
    profile = seccomp.load_profile()
    refused = seccomp.ERRNO | seccomp.EPERM
    rules = [
        each if isinstance(each, Rule) else Rule(names=(each,), action=refused) for each in deny
    ]
    document = {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": profile.default & 0xFFFF,
        # Only one: a call through another architecture's entry point is killed.
        "architectures": [_ARCHITECTURES[machine]],
        "syscalls": [_render_rule(rule) for rule in _rules(profile, machine, rules)],
    }
    return json.dumps(document, separators=(",", ":"))


def write_profile(profile: str) -> Path:
    """Write the profile to the cache and return its path, for engines that take one (Podman).

    Its name is the hash of its content. Other processes may write the same file at once.
    """
    data = profile.encode()
    path = cache_root() / f"seccomp-{hashlib.sha256(data).hexdigest()[:16]}.json"
    if not path.exists():
        write_file(path, data)
    return path


def _rules(profile: seccomp.Profile, machine: str, first: Sequence[Rule]) -> Iterator[Rule]:
    """The rules of the profile, after those in `first`."""
    numbers = seccomp.syscall_numbers()[machine]
    replaced = {name for rule in first for name in rule.names}
    for rule in profile.rules:
        names = tuple(name for name in rule.names if name in numbers and name not in replaced)
        if names:
            yield Rule(names=names, action=rule.action, conditions=rule.conditions)
    for name in sorted(replaced & numbers.keys()):
        ordered = [rule for rule in (*first, *profile.rules) if name in rule.names]
        yield from _separate_rules(name, ordered, profile.default)
    known = replaced.union(*(rule.names for rule in profile.rules))
    yield Rule(names=tuple(sorted(numbers.keys() - known)), action=_ABSENT)


def _separate_rules(name: str, ordered: Sequence[Rule], default: int) -> Iterator[Rule]:
    """Turn the ordered rules of one call into rules that exclude each other."""
    if not ordered[0].conditions:
        yield Rule(names=(name,), action=ordered[0].action)
        return
    masks: dict[int, int] = {}
    for condition in itertools.chain.from_iterable(rule.conditions for rule in ordered):
        if condition.op != "MASKED_EQ":
            raise ValueError(f"{name}: only MASKED_EQ can be separated, not {condition.op}")
        masks[condition.index] = masks.get(condition.index, 0) | condition.mask
    if sum(mask.bit_count() for mask in masks.values()) > _MAX_BITS:
        raise ValueError(f"{name}: its rules look at too many bits")
    for values in itertools.product(*(_combinations(mask) for mask in masks.values())):
        arguments = dict(zip(masks, values, strict=True))
        action = next((rule.action for rule in ordered if _fits(rule, arguments)), default)
        if action != default:
            conditions = tuple(
                Condition(index=index, op="MASKED_EQ", mask=masks[index], value=value)
                for index, value in arguments.items()
            )
            yield Rule(names=(name,), action=action, conditions=conditions)


def _combinations(mask: int) -> list[int]:
    """Every value that has only bits of the mask."""
    bits = [1 << at for at in range(64) if mask >> at & 1]
    return [
        sum(chosen)
        for count in range(len(bits) + 1)
        for chosen in itertools.combinations(bits, count)
    ]


def _fits(rule: Rule, arguments: dict[int, int]) -> bool:
    return all(arguments[each.index] & each.mask == each.value for each in rule.conditions)


def _render_rule(rule: Rule) -> dict[str, object]:
    entry: dict[str, object] = {"names": list(rule.names)}
    if rule.action == seccomp.ALLOW:
        entry["action"] = "SCMP_ACT_ALLOW"
    elif rule.action & ~0xFFFF == seccomp.ERRNO:
        entry |= {"action": "SCMP_ACT_ERRNO", "errnoRet": rule.action & 0xFFFF}
    else:
        raise ValueError(f"{rule.names[0]}: engines do not agree on this action")
    if rule.conditions:
        entry["args"] = [_render_condition(each) for each in rule.conditions]
    return entry


def _render_condition(condition: Condition) -> dict[str, object]:
    values = {"value": condition.value}
    if condition.op == "MASKED_EQ":
        values = {"value": condition.mask, "valueTwo": condition.value}
    return {"index": condition.index, "op": f"SCMP_CMP_{condition.op}", **values}


_ACCOUNT_FILE = re.compile(r"belljar-(?:passwd|group)-([1-9][0-9]{0,9})-\w+")


@contextlib.contextmanager
def account_files(uid: int, name: str = guest_view.USER) -> Iterator[dict[str, str]]:
    """Files that exist while the container starts: their place in it, and their path here."""
    remove_stale_account_files()
    texts = {"passwd": guest_view.passwd(uid, name=name), "group": guest_view.group(uid, name)}
    paths: dict[str, str] = {}
    try:
        for kind, text in texts.items():
            descriptor, path = tempfile.mkstemp(prefix=f"belljar-{kind}-{os.getpid()}-")
            paths[f"/etc/{kind}"] = path
            with open(descriptor, "w") as file:
                os.fchmod(file.fileno(), 0o644)
                file.write(text)
        yield paths
    finally:
        for path in paths.values():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def account_mounts(files: Mapping[str, str]) -> list[dict[str, object]]:
    """The mounts of these files in the engine's form."""
    shared = {"Type": "bind", "ReadOnly": True, "BindOptions": {"Propagation": "rprivate"}}
    return [{**shared, "Source": path, "Target": place} for place, path in files.items()]


def remove_stale_account_files() -> None:
    """Remove files whose process is dead."""
    for path in Path(tempfile.gettempdir()).glob("belljar-*"):
        found = _ACCOUNT_FILE.fullmatch(path.name)
        with contextlib.suppress(OSError):  # removed meanwhile, or another user's
            if found and path.lstat().st_uid == os.geteuid() and _is_dead(int(found[1])):
                path.unlink()


def _is_dead(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # another user's
    return False
