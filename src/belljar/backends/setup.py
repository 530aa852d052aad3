"""What backends share at the start of a guest: what init is told, limits that cannot be kept."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace

from belljar.backends.base import GuestSpec
from belljar.backends.isolation import Layer
from belljar.errors import LimitNotEnforceable
from belljar.limits import Limits
from belljar.protocol import wire
from belljar.protocol.messages import MAX_FILES

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


def check_limits(spec: GuestSpec, kept: Iterable[Layer], where: str) -> None:
    """Refuse or warn about limits that `where` (this host, this engine) cannot enforce.

    With `strict=True` every one is refused. By default one that the caller set is refused if
    nothing at all keeps it; best effort is accepted with a warning, which Python shows once.
    """
    for layer in kept:
        if layer.state == "enforced" or spec.strict is False:
            continue
        asked = layer.name in spec.limits.explicit
        why = f"{where} cannot enforce the limit {layer.name}: {layer.detail}"
        if spec.strict or (asked and layer.state == "absent"):
            hint = "strict=False starts all the same"
            raise LimitNotEnforceable(why, hint=f"{layer.remedy}; {hint}" if layer.remedy else hint)
        if asked:
            message = f"{why}. It is best effort; strict=True refuses to start"
            warnings.warn(message, RuntimeWarning, stacklevel=2)


def with_files(spec: GuestSpec, kept: Iterable[Layer], most: int | None) -> tuple[Layer, ...]:
    """How limits are kept, with as many open files as init gives the code.

    `most`: the hard limit of init as seen from outside (None: unknown, or none), which it cannot
    raise. More than that is refused if the caller is strict; else it is less, and said.
    """
    asked, holds = spec.limits.open_files, min(MAX_FILES, most or MAX_FILES)
    if asked <= holds:
        return tuple(kept)
    why = f"open_files={asked} is more than a sandbox can have on this host, which is {holds}"
    remedy = (
        "raise the hard limit (ulimit -Hn, LimitNOFILE= of a service), or ask for less"
        if holds < MAX_FILES
        else f"ask for {MAX_FILES} at most"
    )
    if spec.strict:
        raise LimitNotEnforceable(why, hint=remedy)
    warnings.warn(f"{why}; {remedy}", RuntimeWarning, stacklevel=2)
    detail = f"RLIMIT_NOFILE for each process, {holds}; {asked} were asked for"
    return tuple(
        replace(layer, detail=detail, remedy=remedy) if layer.name == "open_files" else layer
        for layer in kept
    )
