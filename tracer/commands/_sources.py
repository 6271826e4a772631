"""The user's files on this machine, so that reports name them as the repository does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracer.results import Audit


def with_relative_paths(audit: Audit, source_root: str | None) -> Audit:
    """The Audit with paths below the source root; without one, below the current folder, by prefix alone."""
    from tracer.analysis.paths import below
    from tracer.source_tree import python_files

    root = Path(source_root or ".").resolve()
    return below(audit, str(root), python_files(root) if source_root else ())
