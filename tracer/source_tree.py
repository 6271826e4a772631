"""Finds the user's files in a source tree by the ends of their paths.

A trace from a container says `/app/src/train.py` where the repository has
`src/train.py`: a path is matched by its longest tail that the tree has exactly once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

_SKIPPED = {"node_modules", "site-packages", "dist-packages", "__pycache__", "venv"}
_LIBRARY = ("/site-packages/", "/dist-packages/", "/lib/python3", "<")
_MOST = 100_000  # files looked at: a root that has more is no source tree


def python_files(root: Path) -> Iterator[str]:
    """The Python files below a folder, relative and with `/`; hidden folders and installed packages are left out."""
    looked = 0
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED and not name.startswith("."))
        looked += len(files)
        if looked > _MOST:
            return
        for name in files:
            if name.endswith(".py"):
                yield Path(folder, name).relative_to(root).as_posix()


class Tails:
    """The files of a tree, by the ends of their paths."""

    def __init__(self, files: Iterable[str]) -> None:
        self._by_name: dict[str, list[list[str]]] = {}
        for file in files:
            parts = file.split("/")
            self._by_name.setdefault(parts[-1], []).append(parts[::-1])

    def find(self, path: str) -> str | None:
        """The one file that shares the longest tail with this path; None if there is none, or two, or for a library."""
        path = path.replace("\\", "/")
        if any(mark in path for mark in _LIBRARY):
            return None
        parts = path.split("/")[::-1]
        same = [(_common(parts, other), other) for other in self._by_name.get(parts[0], ())]
        longest = max((length for length, _ in same), default=0)
        best = [other for length, other in same if length == longest]
        return "/".join(best[0][::-1]) if len(best) == 1 else None


def _common(one: list[str], other: list[str]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count
