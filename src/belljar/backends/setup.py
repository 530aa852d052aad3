"""What every guest's init is told at its start, whichever backend starts it."""

from __future__ import annotations

from belljar.guest import wire
from belljar.limits import Limits

ONE_RESULT = 8  # times the output limit that one result may take: pictures are large


def of(limits: Limits, *, share: bool) -> dict[str, object]:
    """`share`: whether values may be handed over as memory, which must be counted by somebody."""
    return {
        "output": limits.output,
        "open_files": limits.open_files,
        "result": min(ONE_RESULT * limits.output, limits.memory // 8, wire.MAX_PAYLOAD),
        "values": limits.memory,
        "share": share,
    }
