"""What holds a guest, as measured from outside on the live guest, never as configured."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

State = Literal["enforced", "best-effort", "absent"]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One thing that confines the guest, or one limit."""

    name: str
    state: State
    detail: str  # what was seen, or which mechanism it is
    remedy: str | None = None  # how to get it enforced on this host


@dataclass(frozen=True, kw_only=True)
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
