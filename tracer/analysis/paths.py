"""Where the user's files lie on this machine: paths of a trace, made relative to a source root.

A path below the root loses the root; any other is matched by its longest tail.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from tracer.results import Audit, Place
from tracer.source_tree import Tails

_T = TypeVar("_T")


def below(audit: Audit, root: str, files: Iterable[str]) -> Audit:
    """The Audit with the user's files relative to `root`; `files` are the root's own, relative, with `/`."""
    paths = _Paths(root.replace("\\", "/").rstrip("/"), files)
    sources = {paths.relative(name): text for name, text in audit.sources.items()}
    changed = {f.name: _moved(getattr(audit, f.name), paths) for f in fields(audit) if f.name != "sources"}
    return replace(audit, **changed, sources=sources)


class _Paths:
    """Makes paths relative, each once."""

    def __init__(self, root: str, files: Iterable[str]) -> None:
        self.root = root
        self.tails = Tails(files)
        self.known: dict[str, str] = {}

    def relative(self, file: str) -> str:
        found = self.known.get(file)
        if found is None:
            found = self.known[file] = self._find(file)
        return found

    def _find(self, file: str) -> str:
        path = file.replace("\\", "/")
        if self.root and path.startswith(self.root + "/"):
            return path[len(self.root) + 1 :]
        return self.tails.find(path) or file


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
