"""Dates, times and time zones as JSON. A zone travels by its name or as a fixed offset."""

import datetime as dt
import re
from typing import Any, Callable, Dict, Optional

from .parcel import Packer, Unpacker

# Names of the time zone database, never a path: no dots, no leading slash.
_ZONE = re.compile(r"[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,3}")
_MICROSECOND = dt.timedelta(microseconds=1)


def lower(packer: Packer, value: Any) -> Optional[Dict[str, Any]]:
    kind = type(value)
    if kind is dt.datetime:
        return {"datetime": _lower_datetime(packer, value)}
    if kind is dt.date:
        return {"date": value.isoformat()}
    if kind is dt.time:
        zone = lower_zone(packer, value.tzinfo)
        return {"time": [value.replace(tzinfo=None).isoformat(), value.fold, zone]}
    if kind is dt.timedelta:
        return {"timedelta": value // _MICROSECOND}
    return None


def _lower_datetime(packer: Packer, value: dt.datetime) -> Any:
    zone = lower_zone(packer, value.tzinfo)
    if zone is not None and zone[0] == "zone" and not _is_zoneinfo(value.tzinfo):
        # A zone object of pytz stands for one offset: let the named zone find its own.
        from zoneinfo import ZoneInfo

        value = value.astimezone(ZoneInfo(zone[1]))
    return [value.replace(tzinfo=None).isoformat(), value.fold, zone]


def _is_zoneinfo(zone: Any) -> bool:
    return type(zone).__module__ == "zoneinfo" and type(zone).__name__ == "ZoneInfo"


def lower_zone(packer: Packer, zone: Any) -> Any:
    """None, ["offset", microseconds, name] or ["zone", name]."""
    if zone is None:
        return None
    if type(zone) is dt.timezone:
        offset = zone.utcoffset(None)
        plain = dt.timezone(offset).tzname(None)
        name = zone.tzname(None)
        return ["offset", offset // _MICROSECOND, None if name == plain else name]
    # `key` is zoneinfo's word for the name, `zone` is pytz's.
    named = getattr(zone, "key", None) if _is_zoneinfo(zone) else getattr(zone, "zone", None)
    if type(named) is str and _ZONE.fullmatch(named):
        return ["zone", named]
    kind = type(zone)
    raise packer.refusal(
        f"has the time zone {kind.__module__}.{kind.__qualname__}; "
        "only datetime.timezone and named zones of zoneinfo can travel"
    )


def raise_zone(unpacker: Unpacker, spec: Any) -> Optional[dt.tzinfo]:
    if spec is None:
        return None
    kind, value, *name = spec
    if kind == "zone" and type(value) is str:
        if value not in unpacker.zones:
            unpacker.zones[value] = _raise_named(unpacker, value)
        found: dt.tzinfo = unpacker.zones[value]
        return found
    if kind == "offset" and type(value) is int:
        offset = dt.timedelta(microseconds=value)
        if name in ([], [None]):
            return dt.timezone(offset)
        if len(name) == 1 and type(name[0]) is str:
            return dt.timezone(offset, name[0])
    raise ValueError("not a time zone")


def raise_zone_of_pandas(unpacker: Unpacker, pd: Any, spec: Any) -> Optional[dt.tzinfo]:
    """The zone in the class that this pandas chooses for its name: pytz in pandas 2, zoneinfo in
    pandas 3. To pandas, the two are different zones, and frames in them are not equal."""
    zone = raise_zone(unpacker, spec)
    if zone is None or not _is_zoneinfo(zone):
        return zone
    name = ("pandas", spec[1])
    if name not in unpacker.zones:
        # zoneinfo has found the zone: so this is no path, and nothing that pandas reads otherwise.
        try:
            unpacker.zones[name] = pd.DatetimeTZDtype("ns", spec[1]).tz
        except KeyError:  # newer than the tables of pytz; pandas 2 can use zoneinfo as well
            unpacker.zones[name] = zone
    chosen: dt.tzinfo = unpacker.zones[name]
    return chosen


def _raise_named(unpacker: Unpacker, name: str) -> dt.tzinfo:
    if not _ZONE.fullmatch(name):
        raise ValueError("not a time zone")
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except Exception:  # a directory, an unreadable file, no data base at all
        raise unpacker.refusal(
            f"is in the time zone {name}, which is not known here; install tzdata"
        ) from None


def _raise_datetime(unpacker: Unpacker, body: Any) -> dt.datetime:
    text, fold, zone = body
    plain = dt.datetime.fromisoformat(text)
    return plain.replace(fold=fold, tzinfo=raise_zone(unpacker, zone))


def _raise_time(unpacker: Unpacker, body: Any) -> dt.time:
    text, fold, zone = body
    plain = dt.time.fromisoformat(text)
    return plain.replace(fold=fold, tzinfo=raise_zone(unpacker, zone))


def _raise_timedelta(unpacker: Unpacker, body: Any) -> dt.timedelta:
    if type(body) is not int:
        raise TypeError("not microseconds")
    days, rest = divmod(body, 86_400_000_000)
    return dt.timedelta(days=days, microseconds=rest)


RAISE: Dict[str, Callable[[Unpacker, Any], Any]] = {
    "datetime": _raise_datetime,
    "date": lambda unpacker, body: dt.date.fromisoformat(body),
    "time": _raise_time,
    "timedelta": _raise_timedelta,
}
