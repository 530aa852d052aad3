"""What holds a guest, as measured from outside on the live guest, never as configured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from html import escape
from typing import Literal

from belljar.backends.mounts import Mount
from belljar.limits import Limits, format_size
from belljar.text import printable

State = Literal["enforced", "best-effort", "absent"]
_SIGNS = {"enforced": "✓", "best-effort": "~", "absent": "✗"}
_STATES = {"enforced": "", "best-effort": "color:#b36b00", "absent": "color:#d33"}
# Styles of the HTML table, for whatever background the notebook has.
_TABLE = "border:0;border-collapse:collapse;margin:0;font-size:inherit"
_CAPTION = "caption-side:top;color:inherit;padding:2px 8px;text-align:left;font-weight:bold"
_CELL = (
    "border:0;border-bottom:1px solid #8886;padding:2px 8px;text-align:left;vertical-align:top;"
    "white-space:normal;overflow-wrap:break-word;max-width:32em"
)


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
        """Show it in a notebook as a table: a sign and a word give each state, not colour alone."""
        groups = (("layer", self.layers), ("limit", self.limits))
        has_remedy = any(layer.remedy for _, layers in groups for layer in layers)
        rows = []
        for kind, layers in groups:
            heads = (kind, "state", "detail", *(["remedy"] if has_remedy else []))
            cells = [f'<th scope="col" style="{_CELL}">{head}</th>' for head in heads]
            rows += [cells] if layers else []
            rows += [_html_cells(layer, has_remedy) for layer in layers]
        shown = "".join(f'<tr style="background:none">{"".join(cells)}</tr>' for cells in rows)
        return (
            f'<table style="{_TABLE}"><caption style="{_CAPTION}">'
            f"{escape(printable(repr(self)[1:-1]))}</caption><tbody>{shown}</tbody></table>"
        )


def _html_cells(layer: Layer, has_remedy: bool) -> list[str]:
    state = f"{_SIGNS[layer.state]} {layer.state}"
    texts = [layer.name, state, layer.detail, *([layer.remedy or ""] if has_remedy else [])]
    styles = [_CELL, f"{_CELL};white-space:nowrap;{_STATES[layer.state]}", _CELL, _CELL]
    return [
        f'<td style="{style}">{escape(printable(text))}</td>'
        for text, style in zip(texts, styles, strict=False)
    ]


def describe_common_limits(limits: Limits) -> tuple[Layer, ...]:
    """The limits that every backend enforces in the same way."""
    details = {
        "open_files": f"RLIMIT_NOFILE for each process, {limits.open_files}",
        "workspace": f"tmpfs, {format_size(limits.workspace)}",
        "tmp": f"tmpfs, {format_size(limits.tmp)}",
        "output": f"counted by the host, {format_size(limits.output)}",
    }
    for name in ("timeout", "host_time", "lifetime", "idle"):
        seconds = getattr(limits, name)
        details[name] = "not set" if seconds is None else f"the host's clock, {seconds:g} s"
    return tuple(Layer(name=name, state="enforced", detail=text) for name, text in details.items())


def describe_mounts(mounts: Iterable[Mount]) -> tuple[Layer, ...]:
    """What the caller has let in. Nothing bounds what is written to a writable one."""
    writable = "writable; how much is written there is not limited"
    return tuple(
        Layer(
            name=f"mount {mount.guest}",
            state="enforced" if mount.read_only else "best-effort",
            detail=f"{mount.host}, {'read-only' if mount.read_only else writable}",
            remedy=None if mount.read_only else "mount it read-only, or use `workspace`",
        )
        for mount in mounts
    )
