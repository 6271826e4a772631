"""Numbers of a trace: stamps to the nanosecond, ids from whatever stands there.

Stamps are microseconds in decimal. A double holds those that Kineto writes today (at
most three decimals, below 2**43) exactly; others are cut from the text.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from tracer.readers._events import Raw
from tracer.trace import NONE, Ints

EXACT_US = float(2**43)  # up to here the nearest double of a stamp with three decimals is that stamp's alone


def ns_of(stamps: list[Any]) -> Ints | None:
    """Nanoseconds from microseconds; NONE where there is no number. None if doubles do not hold them exactly."""
    if stamps and isinstance(stamps[0], Raw):
        return ns_of_texts(stamps)
    column = np.array(stamps, np.float64)
    known = np.isfinite(column)
    if not known.all():
        column[~known] = 0
    whole = np.floor(column)
    ns = whole.astype(np.int64) * 1000 if len(column) == 0 or np.abs(column).max() < 2.0**53 else None
    if ns is None:
        return None
    column -= whole
    if np.abs(whole).max(initial=0) >= EXACT_US and column.any():
        return None
    column *= 1000
    ns += np.rint(column).astype(np.int64)
    ns[~known] = NONE
    return ns


def ns_of_texts(raws: list[Raw]) -> Ints:
    """Nanoseconds from the texts of numbers of microseconds, quoted or not; NONE for what is none."""
    plain = b",".join(raws) + b","
    if plain.count(b".") != len(raws):
        texts = [bytes(raw) or b"null" for raw in raws]
        plain = b",".join([text if b"." in text else text.strip(b'" ') + b".0" for text in texts]) + b","
    plain = plain.translate(None, b'" ')
    if raws and not plain.translate(None, b"0123456789.,"):
        marks = np.frombuffer(plain, np.uint8)
        dots, commas = np.flatnonzero(marks == ord(".")), np.flatnonzero(marks == ord(","))
        if len(dots) == len(commas) == len(raws):
            decimals = commas - dots - 1
            digits = dots - np.concatenate(([-1], commas[:-1])) - 1
            if decimals.min() >= 1 and decimals.max() <= 3 and digits.min() >= 1 and digits.max() <= 16:
                parts = np.fromstring(plain[:-1].replace(b".", b","), np.int64, sep=",")
                return np.asarray(parts[0::2] * 1000 + parts[1::2] * 10 ** (3 - decimals), np.int64)
    return np.array([_ns_of_text(bytes(raw)) for raw in raws], np.int64)


def _ns_of_text(text: bytes) -> int:
    try:
        value = Decimal(text.strip(b'" \t\r\n').decode("ascii")) * 1000
        return int(value.to_integral_value()) if abs(value) < 2**62 else NONE
    except (InvalidOperation, UnicodeDecodeError, ValueError):
        return NONE


def integer(value: Any) -> int:
    """An id from whatever stands there: 7, "7", "stream 7", 7.0, "0x7"; NONE if nothing does."""
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else NONE
    if isinstance(value, float):
        return int(value) if abs(value) < 2**62 else NONE
    if isinstance(value, str):
        found = re.search(r"0[xX]([0-9a-fA-F]{1,15})\b|-?\d{1,18}", value)
        return NONE if not found else int(found[1], 16) if found[1] else int(found[0])
    return NONE


def integers(values: list[Any]) -> Ints:
    """A column of ids; NONE for what is no number."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        return np.array([integer(value) for value in values], np.int64)
