"""A value as JSON carries it, for records and for programs in other languages."""

from __future__ import annotations

import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

MAX_ITEMS = 100_000  # of an array; JSON is no way to move more


def as_json(value: object) -> object:
    """Give the value in JSON's own types, or None where it has none.

    A tuple is a list; dates, Decimals and UUIDs are text; numpy's scalars are numbers and small
    arrays lists. A table is None: its data are in the result.
    """
    try:
        carried: object = json.loads(json.dumps(value, allow_nan=False, default=_plain))
    except (TypeError, ValueError, RecursionError):
        return None
    return carried


def _plain(value: object) -> object:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta | Decimal | UUID):
        return str(value)
    # By their modules: what is not loaded here cannot be the type of this value.
    if type(value).__module__ == "numpy" and getattr(value, "size", MAX_ITEMS) < MAX_ITEMS:
        return _listed(value)
    raise TypeError(f"a {type(value).__qualname__} has no form in JSON")


def _listed(array: Any) -> object:
    # Of its own, numpy gives moments in nanoseconds as bare numbers.
    return (array.astype(str) if array.dtype.kind in "mM" else array).tolist()
