"""The user's files on this machine, so that reports name them as the repository does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracer.results import Audit

_SKIPPED = {"node_modules", "site-packages", "dist-packages", "__pycache__", "venv"}
_MOST = 100_000  # files looked at: a root that has more is no source tree


def with_relative_paths(audit: Audit, source_root: str | None) -> Audit:
    """The Audit with paths below the source root; without one, below the current folder, by prefix alone."""
    from tracer.analysis.paths import below

    root = Path(source_root or ".").resolve()
    return below(audit, str(root), _python_files(root) if source_root else ())


def _python_files(root: Path) -> Iterator[str]:
    looked = 0
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED and not name.startswith("."))
        looked += len(files)
        if looked > _MOST:
            return
        for name in files:
            if name.endswith(".py"):
                yield Path(folder, name).relative_to(root).as_posix()
