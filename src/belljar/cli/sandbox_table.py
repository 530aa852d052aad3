"""Live sandboxes as rows of a table, for `belljar ps` and `belljar top`."""

from __future__ import annotations

import pwd
from collections.abc import Callable, Iterable, Sequence

from belljar.cli import terminal
from belljar.observe.live_sandboxes import LiveSandbox

HEADER = ("ID", "STATE", "BACKEND", "ENV", "CPU %", "MEMORY", "LIMIT", "MEM %", "PROCS", "AGE")
OWNER = ("USER", "PID", "OWNER")

# What goes first where a terminal is narrow: whole columns, the least missed one first.
DROPPED = ("USER", "LIMIT", "OWNER", "PID", "ENV", "BACKEND", "PROCS", "MEM %", "AGE", "STATE")
SHORTEST_OWNER = 12  # characters of the owner's command that are worth a column

# How `top` may sort: largest first.
KEYS: dict[str, Callable[[LiveSandbox], float]] = {
    "cpu": lambda each: each.cpu_percent or 0.0,
    "memory": lambda each: each.memory or 0,
    "age": lambda each: each.age,
    "processes": lambda each: each.processes or 0,
}


def row(each: LiveSandbox, *, owner: bool = True) -> list[str]:
    note = each.note
    limit = note.limits.get("memory")
    cells = [
        note.id,
        each.state,
        note.backend,
        note.environment,
        "-" if each.cpu_percent is None else f"{each.cpu_percent:.1f}",
        "-" if each.memory is None else terminal.size(each.memory),
        "-" if limit is None else terminal.size(int(limit)),
        "-" if each.memory is None or not limit else f"{each.memory / limit:.1%}",
        "-" if each.processes is None else str(each.processes),
        age(each.age),
    ]
    return [*cells, user(note.uid), str(note.owner.pid), note.command[:60]] if owner else cells


def fitting(rows: Sequence[Sequence[str]], width: int, *, gap: int) -> dict[int, int]:
    """The columns that fit into a terminal, by number, and their widths. The owner's command is cut
    to what room there is; another column is there as a whole, or not at all."""
    names = (*HEADER, *OWNER)
    needed = {
        name: max(len(name) + 1, *(len(row[number]) for row in rows), 0) + gap
        for number, name in enumerate(names)
    }
    whole = needed["OWNER"]
    needed["OWNER"] = min(whole, SHORTEST_OWNER + gap)
    kept = list(names)
    for name in DROPPED:
        if sum(needed[each] for each in kept) <= width:
            break
        kept.remove(name)
    spare = max(width - sum(needed[each] for each in kept), 0)
    needed["OWNER"] = min(whole, needed["OWNER"] + spare)
    return {number: needed[name] - gap for number, name in enumerate(names) if name in kept}


def ordered(sightings: Iterable[LiveSandbox], key: str) -> list[LiveSandbox]:
    return sorted(sightings, key=KEYS[key], reverse=True)


def age(seconds: float) -> str:
    """Short, as `ps` writes it.

    >>> age(5), age(125), age(7300), age(200000)
    ('5s', '2m05s', '2h01m', '2d07h')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    days, hours_left = divmod(hours, 24)
    if days:
        return f"{days}d{hours_left:02d}h"
    if hours:
        return f"{hours}h{minutes_left:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


def user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def summary(sightings: Sequence[LiveSandbox]) -> str:
    live = [each for each in sightings if each.live]
    busy = sum(each.state == "busy" for each in live)
    memory = sum(each.memory or 0 for each in live)
    cpu = sum(each.cpu_percent or 0.0 for each in live)
    orphans = sum(each.state == "orphan" for each in sightings)
    text = f"{len(live)} sandboxes, {busy} busy, {cpu:.0f} % cpu, {terminal.size(memory)}"
    return f"{text}, {orphans} orphans (belljar gc)" if orphans else text
