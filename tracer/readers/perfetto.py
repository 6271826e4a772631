"""Leads from a Perfetto file of ours to the recording beside it; a Perfetto file holds too little to be audited."""

from __future__ import annotations

from pathlib import Path

from tracer.errors import TraceError
from tracer.readers import recording
from tracer.trace import Trace

SUFFIXES = (".pftrace", ".perfetto-trace")


def accepts(path: Path, head: bytes) -> bool:
    """By its name, or by the first field of every Perfetto trace."""
    return path.name.endswith(SUFFIXES) or (head[:1] == b"\x0a" and not path.is_dir() and b"{" not in head[:16])


def load(path: Path) -> Trace:
    """The recording in the same folder."""
    if path.name.endswith(SUFFIXES) and recording.accepts(path.parent, b""):
        return recording.load(path.parent)
    raise TraceError(
        f"{path} is a Perfetto trace without a recording beside it",
        why="a Perfetto trace is drawn from a recording, and lacks what an audit needs (calls with their GPU work)",
        fix="give the folder that `tracer run` recorded, or the .json.gz of torch.profiler",
    )
