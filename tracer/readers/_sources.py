"""Finds the source files that a trace names, for a trace that does not carry them.

A file is looked for below the source root, by as much of its path as fits, and beside
the trace as `NAME_train.py` of `NAME.json`.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from tracer.source_tree import Tails, python_files
from tracer.trace import Kind, Trace

MOST_BYTES = 2_000_000  # of one file
_FUNCTION = re.compile(r"^(.*)\(\d+\): ")


def find(trace: Trace, path: Path, root: Path | None) -> dict[str, str]:
    """From the file's name in the trace to its text."""
    if root is None and (path.is_dir() or not any(path.parent.glob(f"{_stem(path)}_*"))):
        return {}
    found: dict[str, str] = {}
    tree = _Tree(root) if root is not None else None
    for file in sorted(_files(trace) - set(trace.sources)):
        text = _text(tree.find(file) if tree is not None else None) or _text(
            path.with_name(f"{_stem(path)}_{Path(file).name}")
        )
        if text is not None:
            found[file] = text
    return found


def _files(trace: Trace) -> set[str]:
    """All source files that the trace names."""
    names = np.unique(trace.spans.name[trace.spans.kind == Kind.PYTHON]).tolist()
    functions = (_FUNCTION.match(trace.names[name]) for name in names)
    files = {function[1] for function in functions if function}
    files |= {trace.names[name] for name in np.unique(trace.frames.file).tolist()}
    return {file for file in files if file and not file.startswith("<") and "\0" not in file}


class _Tree:
    """The source root, looked through only if a file is not where its path says."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._tails: Tails | None = None

    def find(self, file: str) -> Path | None:
        """The file at the root, or below it by its path or the end of it."""
        parts = Path(file.replace("\\", "/")).parts
        parts = tuple(part for part in parts if part not in ("/", "..", "."))
        for start in range(len(parts)):
            candidate = self._root.joinpath(*parts[start:])
            if candidate.is_file():
                return candidate
        self._tails = self._tails or Tails(python_files(self._root))
        found = self._tails.find(file)
        return self._root / found if found is not None else None


def _text(path: Path | None) -> str | None:
    try:
        if path is None or not path.is_file() or path.stat().st_size > MOST_BYTES:
            return None
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _stem(path: Path) -> str:
    return re.sub(r"\.json(\.gz|\.zst)?$", "", path.name)
