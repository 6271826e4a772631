"""The values that reads returned, in a file; and whether two runs read the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

SCALAR = "item"
COUNT = "nonzero"
READ = "read"
_ROUNDING = 1e-3  # numbers that differ by less, relatively, may be sums in another order


class Value(msgspec.Struct, frozen=True, array_like=True):
    """What one synchronisation returned."""

    what: str  # SCALAR, COUNT or READ
    value: Any  # number, or size, or nested list
    kind: str = "number"  # "complex": value is a pair


class Store(msgspec.Struct, array_like=True):
    """The values of a run: for each (role, place) in order of turns."""

    values: dict[str, list[Value]] = {}
    order: list[str] = []  # the keys in the order in which they were asked for

    def save(self, path: Path) -> None:
        """Write them."""
        path.write_bytes(msgspec.msgpack.encode(self))

    @classmethod
    def load(cls, path: Path) -> Store:
        """Read them back."""
        return msgspec.msgpack.decode(path.read_bytes(), type=cls)


def differences(first: Store, second: Store) -> str:
    """Why two recordings of the same program are not the same; empty if they are.

    Counts, flags and integers must be equal; other numbers may differ as sums in
    another order do.
    """
    if first.order != second.order:
        lost = sorted(set(first.values) ^ set(second.values))
        where = (
            lost[0]
            if lost
            else next((a for a, b in zip(first.order, second.order) if a != b), (first.order + second.order)[-1])
        )
        return f"two runs read values in another order or number, first at {_readable(where)}"
    for key, values in first.values.items():
        for turn, (a, b) in enumerate(zip(values, second.values[key])):
            if not _alike(a.value, b.value):
                return f"two runs read different values at {_readable(key)}, turn {turn}: {a.value!r} and {b.value!r}"
    return ""


def _readable(key: str) -> str:
    role, place, what = [*key.split("|"), "", ""][:3]
    return f"{place or 'a place outside Python'} ({what}, {role} thread)"


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_alike(x, y) for x, y in zip(a, b))
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (a != a and b != b) or abs(a - b) <= _ROUNDING * max(abs(a), abs(b))
    return type(a) is type(b) and a == b
