"""Columns that grow in place, so that joining them at the end costs no memory, and ids for what stands in them."""

from __future__ import annotations

from collections.abc import Callable
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


class Ids32:
    """Gives things ids, each once: in the order they come, or as `make` says."""

    def __init__(self, make: Callable[[Any], int] | None = None) -> None:
        self._known: dict[Any, int] = {}
        self._make = make or (lambda key: len(self._known))

    def __iter__(self) -> Any:
        return iter(self._known)

    def id(self, key: Any) -> int:
        """The id of one thing."""
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._make(key)
        return found

    def ids(self, keys: list[Any]) -> Any:
        """The ids of many, nearly all of which are known already."""
        try:
            return np.fromiter(map(self._known.__getitem__, keys), np.int32, len(keys))
        except KeyError:
            for key in dict.fromkeys(keys):  # in their order, not a set's: ids must not change from run to run
                self.id(key)
            return np.fromiter(map(self._known.__getitem__, keys), np.int32, len(keys))
