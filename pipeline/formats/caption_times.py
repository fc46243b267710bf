"""The one reading of a caption's times, in whatever file they stand."""

from __future__ import annotations

import re

MAX_SECONDS = 1e10
"""300 years; floats much beyond it no longer tell a caption's start from its end."""
_CLOCK = re.compile(r"(-?)(?:(\d{1,9}):(?=[0-5]?\d:))?(\d{1,9}):([0-5]?\d)(?:[.,](\d*))?")
"""Minutes without hours may be 60 and more. A fourth part, as of frames, is none."""
_ROUNDED_UP = "1000"
"""As a fraction: milliseconds that their writer rounded up to a second."""


def parse_time(value: object, seconds_per_unit: float = 1.0) -> float | None:
    """Seconds of a number, a number's text or a clock time `[-][h:]mm:ss[.s]`; None: unreadable.

    Point and comma both begin a fraction, of as many digits as there are. A clock time says its own
    unit, so `seconds_per_unit` applies to plain numbers alone.
    """
    if isinstance(value, str):
        clock = _CLOCK.fullmatch(value.strip())
        if clock:
            return _clock_seconds(*clock.groups(default=""))
        # float() would read 1_0 as ten.
        value = "" if "_" in value else value.replace(",", ".")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        seconds = float(value) * seconds_per_unit
    except (ValueError, OverflowError):
        return None
    return seconds if abs(seconds) < MAX_SECONDS else None  # NaN is not below it either


def _clock_seconds(sign: str, hours: str, minutes: str, seconds: str, digits: str) -> float | None:
    fraction = 1.0 if digits == _ROUNDED_UP else float(f"0.{digits or 0}")
    total = (int(hours or 0) * 60 + int(minutes)) * 60 + int(seconds) + fraction
    if total >= MAX_SECONDS:
        return None
    return -total if sign else total
