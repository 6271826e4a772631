"""Columns that grow: each is one block of memory, extended in place, so that joining them at the end costs none."""

from __future__ import annotations

from typing import Any

import numpy as np


class GrowingColumns:
    """Equally long columns with the types given at the start."""

    def __init__(self, **types: Any) -> None:
        self._types = types
        self._data = {name: bytearray() for name in types}

    def append(self, **parts: Any) -> None:
        """Add rows; every column has to be there."""
        for name, kind in self._types.items():
            self._data[name] += np.ascontiguousarray(parts[name], kind).data

    def __len__(self) -> int:
        name, kind = next(iter(self._types.items()))
        return len(self._data[name]) // int(np.dtype(kind).itemsize)

    def take(self) -> dict[str, Any]:
        """The columns as arrays; they are given away."""
        columns = {name: np.frombuffer(self._data.pop(name), kind) for name, kind in self._types.items()}
        self._data = {name: bytearray() for name in self._types}
        return columns
