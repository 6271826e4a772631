"""Where the user's files lie on this machine: paths of a trace, made relative to a source root.

A trace from a container says `/app/src/train.py` where the repository has
`src/train.py`. A path below the root loses the root; any other is matched by its
longest tail that the root has exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from tracer.results import Audit, Place

_LIBRARY = ("/site-packages/", "/dist-packages/", "<")

_T = TypeVar("_T")


def below(audit: Audit, root: str, files: Iterable[str]) -> Audit:
    """The Audit with the user's files relative to `root`; `files` are the root's own, relative, with `/`."""
    paths = _Paths(root.replace("\\", "/").rstrip("/"), files)
    sources = {paths.relative(name): text for name, text in audit.sources.items()}
    changed = {f.name: _moved(getattr(audit, f.name), paths) for f in fields(audit) if f.name != "sources"}
    return replace(audit, **changed, sources=sources)


class _Paths:
    """Knows the root's files by their name."""

    def __init__(self, root: str, files: Iterable[str]) -> None:
        self.root = root
        self.by_name: dict[str, list[list[str]]] = {}
        self.known: dict[str, str] = {}
        for file in files:
            parts = file.split("/")
            self.by_name.setdefault(parts[-1], []).append(parts[::-1])

    def relative(self, file: str) -> str:
        found = self.known.get(file)
        if found is None:
            found = self.known[file] = self._find(file)
        return found

    def _find(self, file: str) -> str:
        path = file.replace("\\", "/")
        if self.root and path.startswith(self.root + "/"):
            return path[len(self.root) + 1 :]
        if any(mark in path for mark in _LIBRARY):
            return file
        parts = path.split("/")[::-1]
        same = [(_common(parts, other), other) for other in self.by_name.get(parts[0], ())]
        longest = max((length for length, _ in same), default=0)
        best = [other for length, other in same if length == longest]
        return "/".join(best[0][::-1]) if len(best) == 1 else file


def _common(one: list[str], other: list[str]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def _moved(value: _T, paths: _Paths) -> _T:
    """The same value with the file of every Place and line in it made relative."""
    moved: Any = value
    if isinstance(value, Place):
        moved = replace(value, file=paths.relative(value.file))
    elif isinstance(value, tuple):
        moved = tuple(_moved(item, paths) for item in value) if value and not isinstance(value[0], int) else value
    elif is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: _moved(getattr(value, f.name), paths) for f in fields(value)}
        if isinstance(changed.get("file"), str):
            changed["file"] = paths.relative(changed["file"])
        moved = replace(value, **changed)
    result: _T = moved
    return result
