"""How people read and write times and sizes. The only place that knows "ms"."""

from __future__ import annotations

import re

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

_SCALES = {"ns": 1, "us": NS_PER_US, "µs": NS_PER_US, "ms": NS_PER_MS, "s": NS_PER_S, "min": 60 * NS_PER_S}


def show_ns(ns: float) -> str:
    """A duration with three significant digits: `940 ns`, `12.3 us`, `4.56 ms`, `1.20 s`."""
    size = abs(ns)
    for unit, scale in (("s", NS_PER_S), ("ms", NS_PER_MS), ("us", NS_PER_US)):
        if size >= scale * 0.9995:
            value = ns / scale
            digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
            return f"{value:.{digits}f} {unit}"
    return f"{ns:.0f} ns"


def show_range(low_ns: float, high_ns: float) -> str:
    """Two durations, the unit once if it is the same: `1.20 to 2.10 ms`, `up to 3 us`; one if they read alike."""
    low, high = show_ns(low_ns), show_ns(high_ns)
    if not low_ns and high_ns:
        return f"up to {high}"
    if low == high:
        return high
    return f"{low.rpartition(' ')[0] if low.rpartition(' ')[2] == high.rpartition(' ')[2] else low} to {high}"


def show_bytes(count: float) -> str:
    """A size in powers of 1,024: `512 B`, `1.5 KiB`, `64.0 MiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def show_share(part: float, whole: float) -> str:
    """A share in percent, `-` where the whole is nothing."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def parse_ns(text: str | int | float) -> int:
    """Nanoseconds from `1.5ms`, `200us`, `3 s`; a bare number is seconds.

    Raises ValueError for anything else.
    """
    if isinstance(text, int | float):
        return round(text * NS_PER_S)
    found = re.fullmatch(r"\s*([0-9.]+(?:e[+-]?\d+)?)\s*([a-zµ]*)\s*", text)
    if not found or (found[2] and found[2] not in _SCALES):
        raise ValueError(f"not a time: {text!r}; write for example 500us, 20ms or 3s")
    return round(float(found[1]) * _SCALES.get(found[2], NS_PER_S))
