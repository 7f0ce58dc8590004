"""Dates that machines were meant to read, as ISO 8601: a day, with its time where one is given.

    2019-11-20T08:30:00+0100     2019-11-20T08:30:00+01:00       time and offset, where they are
    20191120, 2019/11/20         2019-11-20
    Wed, 20 Nov 2019 08:30 GMT   2019-11-20T08:30:00Z            RFC 5322, and months in English words
    20.11.2019, 25/12/2019       2019-11-20, 2019-12-25
    03/04/2019                   none: March or April

A value is a date as a whole or it is none; nothing is looked for in prose. There is no day 31 in June,
nothing on the web is older than printed books, and 1970-01-01 is a clock that was not set.
"""

from __future__ import annotations

import re
from datetime import date

MAX_CHARS = 80
_YEARS = range(1450, 2101)
_UNSET = date(1970, 1, 1)

_TIME = (
    r"(?:(?:\s*[T,]\s*|\s+|\s+at\s+)(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,]\d{1,9})?)?"
    r"(?:\s*(?P<half>[AaPp])\.?[Mm]\.?)?(?:\s*(?P<zone>Z|(?:UTC|GMT)?[+-]\d\d(?::?\d\d)?|UTC|GMT))?"
    r"(?:\s*\([a-z ]{3,40}\))?)?"
)
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_MONTH = rf"(?P<word>{'|'.join(_MONTHS)})[a-z]{{0,6}}\.?"
_FORMS = [
    re.compile(form + _TIME, re.IGNORECASE | re.ASCII)
    for form in (
        r"(?P<year>\d{4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})",
        r"(?P<year>\d{4})(?P<month>\d\d)(?P<day>\d\d)",
        r"(?P<year>\d{4})/(?P<month>\d{1,2})/(?P<day>\d{1,2})",
        r"(?P<year>\d{4})\.(?P<month>\d{1,2})\.(?P<day>\d{1,2})",
        r"(?P<day>\d{1,2})\.(?P<month>\d{1,2})\.(?P<year>\d{4})",
        r"(?P<first>\d{1,2})[/-](?P<other>\d{1,2})[/-](?P<year>\d{4})",
        rf"(?:[a-z]{{3,9}},?\s+)?(?P<day>\d{{1,2}})(?:st|nd|rd|th)?[\s-]+{_MONTH},?[\s-]+(?P<year>\d{{4}})",
        rf"(?:[a-z]{{3,9}},?\s+)?{_MONTH}\s+(?P<day>\d{{1,2}})(?:st|nd|rd|th)?,?\s+(?P<year>\d{{4}})",
    )
]
_IN_PATH = re.compile(
    r"/((?:19|20)\d\d)[/-](\d{1,2})[/-](\d{1,2})(?=[/_-]|$)|/((?:19|20)\d\d)(\d\d)(\d\d)(?=[/_-]|$)", re.ASCII
)


def read_date(value: str) -> str | None:
    """YYYY-MM-DD, or YYYY-MM-DDThh:mm:ss with Z, +hh:mm or nothing behind it."""
    value = value.strip()
    if not 8 <= len(value) <= MAX_CHARS:
        return None
    for form in _FORMS:
        match = form.fullmatch(value)
        if match is not None:
            return _spelled(match.groupdict())
    return None


def date_of_url(url: str) -> str | None:
    """Of its path: /2019/11/20/ or /2019-11-20-"""
    path = re.sub(r"^[a-z]+://[^/]*|[?#].*$", "", url[:2000], flags=re.IGNORECASE)
    days = {_day(*map(int, filter(None, found))) for found in _IN_PATH.findall(path)}
    day = days.pop() if len(days) == 1 else None
    return day.isoformat() if day is not None else None


def _spelled(parts: dict[str, str | None]) -> str | None:
    year = int(parts["year"] or 0)
    if parts.get("word"):
        month, day = _MONTHS.index((parts["word"] or "").lower()) + 1, int(parts["day"] or 0)
    elif parts.get("first"):
        first, other = int(parts["first"] or 0), int(parts["other"] or 0)
        if first <= 12 and other <= 12 and first != other:
            return None
        month, day = (first, other) if other > 12 else (other, first)
    else:
        month, day = int(parts["month"] or 0), int(parts["day"] or 0)
    found = _day(year, month, day)
    if found is None:
        return None
    time = _time(parts)
    return found.isoformat() if time is None else f"{found.isoformat()}T{time}"


def _day(year: int, month: int, day: int) -> date | None:
    if year not in _YEARS:
        return None
    try:
        found = date(year, month, day)
    except ValueError:
        return None
    return found if found != _UNSET else None


def _time(parts: dict[str, str | None]) -> str | None:
    """None too for one that no clock shows: the day may be right."""
    if not parts["hour"]:
        return None
    hour, minute, second = (int(parts[name] or 0) for name in ("hour", "minute", "second"))
    half, zone = parts["half"], (parts["zone"] or "").upper()
    if half:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half.lower() == "p" else 0)
    if hour > 23 or minute > 59 or second > 59:
        return None
    offset = zone.removeprefix("UTC").removeprefix("GMT")
    if offset[:1] in ("+", "-"):
        digits = offset[1:].replace(":", "").ljust(4, "0")
        if int(digits[:2]) > 14 or int(digits[2:]) > 59:
            return None
        zone = f"{offset[0]}{digits[:2]}:{digits[2:]}"
    elif zone:
        zone = "Z"
    return f"{hour:02}:{minute:02}:{second:02}{zone}"
