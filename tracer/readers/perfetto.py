"""Leads from a Perfetto file of ours to the recording beside it; a Perfetto file holds too little to be audited."""

from __future__ import annotations

from pathlib import Path

from tracer.errors import TraceError
from tracer.readers import recording
from tracer.readers._folders import MANIFEST
from tracer.trace import Trace

SUFFIXES = (".pftrace", ".perfetto-trace")
_OURS = "trace.pftrace"  # what `run` and `export` call the one that they draw inside a recording's folder


def accepts(path: Path, head: bytes) -> bool:
    """By its name, or by the first field of every Perfetto trace."""
    return path.name.endswith(SUFFIXES) or (head[:1] == b"\x0a" and not path.is_dir() and b"{" not in head[:16])


def load(path: Path) -> Trace:
    """The recording whose folder it was drawn in."""
    if path.name == _OURS and _is_recording(path.parent):
        return recording.load(path.parent)
    raise TraceError(
        f"{path} is a Perfetto trace without a recording beside it",
        why="a Perfetto trace is drawn from a recording and lacks what an audit needs (calls with their GPU work); "
        f"only one called {_OURS} in a recording's own folder is known to belong to it",
        fix="give the folder that `tracer run` recorded, or the .json.gz of torch.profiler",
    )


def _is_recording(folder: Path) -> bool:
    """Whether this is a run's folder or a rank's, rather than one where recordings happen to lie."""
    if not recording.accepts(folder, b""):
        return False
    return any((folder / name).is_file() for name in ("run.json", MANIFEST))
