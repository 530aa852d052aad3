"""What holds a guest, as measured from outside on the live guest, never as configured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

from belljar.backends.mounts import Mount
from belljar.text import printable

State = Literal["enforced", "best-effort", "absent"]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One thing that confines the guest, or one limit."""

    name: str
    state: State
    detail: str  # what was seen, or which mechanism it is
    remedy: str | None = None  # how to get it enforced on this host


@dataclass(frozen=True, kw_only=True, repr=False)
class Isolation:
    """`sandbox.isolation`: the layers around a guest, and how each limit is kept."""

    backend: str
    layers: tuple[Layer, ...]
    limits: tuple[Layer, ...]

    @property
    def enforced(self) -> bool:
        """Whether nothing is best-effort or absent."""
        return all(layer.state == "enforced" for layer in (*self.layers, *self.limits))

    def layer(self, name: str) -> Layer:
        for layer in (*self.layers, *self.limits):
            if layer.name == name:
                return layer
        raise KeyError(name)

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    def __repr__(self) -> str:
        """Count what there is, and name what is not enforced."""
        counted = f"{len(self.layers)} layers, {len(self.limits)} limits"
        if self.enforced:
            return f"<Isolation {self.backend}: {counted}, all enforced>"
        rest = [each for each in (*self.layers, *self.limits) if each.state != "enforced"]
        named = ", ".join(f"{each.name} {each.state}" for each in rest)
        return f"<Isolation {self.backend}: {counted}, {named}>"

    def __str__(self) -> str:
        """One line for each layer and limit, below that of the repr."""
        lines = [repr(self)[1:-1]]
        for each in (*self.layers, *self.limits):
            remedy = f" (remedy: {each.remedy})" if each.remedy else ""
            lines.append(f"{each.state:12} {each.name}: {each.detail}{remedy}")
        return printable("\n".join(lines))

    def _repr_html_(self) -> str:
        """Show it in a notebook as a table."""
        from belljar.results import display

        return display.isolation_table(self)


def describe_mounts(mounts: Iterable[Mount]) -> tuple[Layer, ...]:
    """What the caller has let in. Nothing bounds what is written to a writable one."""
    return tuple(
        Layer(
            name=f"mount {mount.guest}",
            state="enforced" if mount.read_only else "best-effort",
            detail=f"{mount.host}, read-only"
            if mount.read_only
            else f"{mount.host}, writable; how much is written there is not limited",
            remedy=None if mount.read_only else "mount it read-only, or use `workspace`",
        )
        for mount in mounts
    )
