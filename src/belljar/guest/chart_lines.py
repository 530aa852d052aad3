"""Lines, points and areas in one pair of matplotlib's axes, as data."""

import math
import sys
from typing import Any, Dict, List, Optional, Tuple

from .chart_elements import (
    MAX_ELEMENTS,
    Found,
    FoundElements,
    PointBudget,
    Scales,
    get_label,
    pick_evenly,
)

Arrays = List[Tuple[str, Any, Any]]  # label, xs, ys

MAX_DECORATION = 8  # points of an error bar with its caps
MIN_VIOLIN = 10  # points of its outline; few points are even by chance


def find_lines(axes: Any, scales: Scales, budget: PointBudget, drawn: FoundElements) -> Found:
    """The series by chart type; beside other elements, only those that are visible."""
    if "pie" in drawn.found:
        return {}
    lines = [line for line in axes.lines if id(line) not in drawn.taken and line.get_visible()]
    areas = _add_areas(axes, drawn)
    sets = _add_lines(axes, lines, areas, drawn)
    _add_points(axes, sets)
    if areas and not sets:  # else it is the shade around or below a line
        sets["line"] = [(area.label, *area.edge()) for area in areas]
    seen = {kind: [each for each in arrays if _finite(each)] for kind, arrays in sets.items()}
    sets = {kind: arrays for kind, arrays in seen.items() if arrays} or (
        {} if drawn.found else seen  # a line chart may have no points
    )
    references = _add_references(axes, lines, scales, named_only="line" not in sets)
    if references:
        sets["line"] = [*sets.get("line", ()), *filter(_finite, references)]
    return {kind: _make_points(arrays, scales, budget) for kind, arrays in sets.items()}


def _add_lines(
    axes: Any, lines: List[Any], areas: "List[_Area]", drawn: FoundElements
) -> Dict[str, Arrays]:
    lines = [line for line in lines if line.get_transform() == axes.transData]
    # Lines without points serve the legend: seaborn names lines by their colour.
    colours = {
        str(line.get_color()): get_label(line) for line in lines if not len(line.get_xdata())
    }
    sets: Dict[str, Arrays] = {}
    for line in lines:
        xs, ys = line.get_data(orig=False)
        bare = str(line.get_linestyle()).strip() in ("", "None")
        if not len(xs) or (not bare and _is_decoration((xs, ys), drawn)):
            continue
        kind = "scatter" if bare and id(line) not in drawn.names else "line"
        label = drawn.names.get(id(line)) or get_label(line)
        label = label or next((area.label for area in areas if area.is_below(xs, ys)), "")
        label = label or colours.get(str(line.get_color()), "")
        sets.setdefault(kind, []).append((label, xs, ys))
    return sets


def _is_decoration(data: Tuple[Any, Any], drawn: FoundElements) -> bool:
    """True for error bars and quartiles that seaborn draws as lines in a bar or a violin."""
    if len(data[0]) > MAX_DECORATION:
        return False
    for axis, values in enumerate(data):
        known = [float(value) for value in values if math.isfinite(value)]
        if not known:
            continue
        middle, half = (min(known) + max(known)) / 2, (max(known) - min(known)) / 2
        for on, centre, reach in drawn.spans[:MAX_ELEMENTS]:
            if on == axis and abs(centre - middle) <= reach * 1e-6 and half <= reach:
                return True
    return False


def _add_points(axes: Any, sets: Dict[str, Arrays]) -> None:
    for collection in axes.collections:
        if type(collection).__name__ == "PathCollection" and collection.get_visible():
            offsets = collection.get_offsets()
            points = offsets.filled(math.nan) if hasattr(offsets, "filled") else offsets
            made = (get_label(collection), points[:, 0], points[:, 1])
            sets.setdefault("scatter", []).append(made)


# -- areas --------------------------------------------------------------------------------------


class _Area:
    """One piece of fill_between(): corner, n points, corner, n points back, end."""

    def __init__(self, label: str, vertices: Any, axis: int) -> None:
        count = (len(vertices) - 3) // 2
        self.label = label
        self._axis = axis  # the one on which the two curves differ
        first, second = vertices[1 : count + 1], vertices[count + 2 : 2 * count + 2]
        self._curves = first, second[::-1]

    def is_below(self, xs: Any, ys: Any) -> bool:
        equal = sys.modules["numpy"].array_equal
        return bool(self.label) and any(
            equal(curve[:, 0], xs) and equal(curve[:, 1], ys) for curve in self._curves
        )

    def edge(self) -> Tuple[Any, Any]:
        """The curve that carries the data: not the base line, and the upper one of two."""
        uneven = [curve for curve in self._curves if _spread(curve[:, 1]) > 0]
        if len(uneven) == 2:
            meant = max(uneven, key=lambda curve: float(curve[:, 1].sum()))
        else:
            meant = max(uneven or self._curves, key=lambda curve: float(abs(curve[:, 1]).sum()))
        return meant[:, 0], meant[:, 1]

    def violin(self) -> Optional[Tuple[int, float, float]]:
        """Axis, centre and half the width, if it is symmetric around a straight line."""
        first, second = (curve[:, self._axis] for curve in self._curves)
        if len(first) < MIN_VIOLIN:
            return None
        widths, middles = abs(first - second), (first + second) / 2
        reach = float(widths.max()) / 2
        if not reach > 0 or _spread(widths) <= reach * 1e-6 or _spread(middles) > reach * 1e-6:
            return None
        return self._axis, float(middles[0]), reach * (1 + 1e-6)


def _add_areas(axes: Any, drawn: FoundElements) -> List[_Area]:
    """Areas below a curve. Violins count as bars: lines inside them belong to them."""
    areas = []
    for collection in axes.collections:
        if type(collection).__name__ != "FillBetweenPolyCollection":
            continue
        upright = collection.t_direction == "y"  # fill_betweenx()
        for path in collection.get_paths():
            area = _Area(get_label(collection), path.vertices, 0 if upright else 1)
            violin = area.violin()
            if violin is not None:
                drawn.spans.append(violin)
            elif not upright:
                areas.append(area)
    return areas


def _spread(values: Any) -> float:
    return float(values.max() - values.min()) if len(values) else 0.0


# -- lines across all of the axes ---------------------------------------------------------------


def _add_references(axes: Any, lines: List[Any], scales: Scales, named_only: bool) -> Arrays:
    """axhline() and axvline(), from edge to edge. Without other lines they count only if they have
    a name, because libraries draw unnamed ones below bars."""
    across = axes.get_xaxis_transform(which="grid"), axes.get_yaxis_transform(which="grid")
    found: Arrays = []
    for line in lines:
        transform = line.get_transform()
        axis = next((axis for axis in (0, 1) if transform == across[axis]), None)
        data = line.get_xydata()
        if axis is None or not len(data) or (named_only and not get_label(line)):
            continue
        place = float(data[0, axis])
        ends = axes.transData.inverted().transform(transform.transform(data))
        sides: List[Any] = [[float(f"{end:.12g}") for end in ends[:, side]] for side in (0, 1)]
        sides[axis] = [place] * len(data)
        at = scales[axis].plain(place)
        label = get_label(line) or f"{'xy'[axis]} = {f'{at:g}' if isinstance(at, float) else at}"
        found.append((label, sides[0], sides[1]))
    return found


# -- as JSON has them ---------------------------------------------------------------------------


def _finite(series: Tuple[str, Any, Any]) -> bool:
    isfinite = sys.modules["numpy"].isfinite
    return bool((isfinite(series[1]) & isfinite(series[2])).any())


def _make_points(
    arrays: Arrays, scales: Scales, budget: PointBudget
) -> Tuple[List[Dict[str, Any]], bool]:
    total = sum(len(xs) for _, xs, _ in arrays)
    given = budget.take(total)
    truncated = given < total or len(arrays) > MAX_ELEMENTS
    parts = []
    for label, xs, ys in arrays[:MAX_ELEMENTS]:
        count = len(xs) * given // total if total else 0
        chosen = pick_evenly(len(xs), count)
        points = [[scales[0].plain(xs[i]), scales[1].plain(ys[i])] for i in chosen]
        parts.append({"label": label, "points": points})
    return parts, truncated
