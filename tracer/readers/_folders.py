"""What is in a folder: the ranks of a recording, or traces that somebody else put there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
RUN = "run.json"  # in a run's folder
NOTHING = "nothing.txt"  # beside it, of a run that recorded nothing: why
_TRACE = re.compile(r"(?<!\.hits)\.json(\.gz|\.zst)?$")
_OURS = ("audit.json", "run.json", "sources.json", "samples.json")  # written beside a trace, no traces themselves


def rank_folders(path: Path) -> list[Path]:
    """The folders with a manifest: this one, or those right below it."""
    if (path / MANIFEST).is_file():
        return [path]
    return sorted((found.parent for found in path.glob(f"*/{MANIFEST}")), key=_natural)


def trace_files(folder: Path) -> list[Path]:
    """The files in a folder that look like traces by their names."""
    files = [path for path in folder.iterdir() if _TRACE.search(path.name) and path.is_file()]
    return sorted((path for path in files if path.name not in _OURS and path.name[0] != "."), key=_natural)


def rank_in_name(name: str) -> int | None:
    """3 from rank3.json, rank-3.x.pt.trace.json, worker3_step_12.json; None without such a word."""
    found = re.search(r"(?:rank|worker)[-_]?(\d{1,6})", name, re.IGNORECASE)
    return int(found[1]) if found else None


def _natural(path: Path) -> list[Any]:
    """rank2 before rank10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]
