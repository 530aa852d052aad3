"""Belljar's own orphans, in the shape that DockerExecutor lists containers in."""

from __future__ import annotations

from typing import Any

from belljar.observe import orphans


def find() -> list[dict[str, Any]]:
    """What still holds processes or a container, and whose owner is known to be dead."""
    return [
        _entry(each) for each in orphans.find_orphans().leftovers if each.kind in orphans.RUNNING
    ]


def _entry(each: orphans.Leftover) -> dict[str, Any]:
    id = each.id or each.name
    return {
        "id": id,
        "short_id": id[:12] if each.id else each.name.rpartition("/")[2],
        "name": each.name,
        "status": "orphaned",
        "created": "unknown",
        "owner": each.owner,
        "backend": each.backend,
    }
