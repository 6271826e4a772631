"""From files to a Trace. A module here offers `accepts(path, head) -> bool` and `load(path) -> Trace`."""

from __future__ import annotations

from pathlib import Path

from tracer.errors import TraceError
from tracer.plugins import modules_in
from tracer.trace import Trace


def load(path: str | Path) -> Trace:
    """The trace in a file or a folder, whatever its format."""
    path = Path(path)
    if not path.exists():
        raise TraceError(f"{path} does not exist")
    head = b"" if path.is_dir() else path.open("rb").read(4096)
    for reader in modules_in("tracer.readers"):
        if reader.accepts(path, head):
            trace: Trace = reader.load(path)
            return trace
    raise TraceError(f"{path} is not a trace", fix="give a trace of torch.profiler (.json or .json.gz)")
