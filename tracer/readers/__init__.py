"""From files to a Trace. A module here offers `accepts(path, head) -> bool` and `load(path) -> Trace`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import MappingProxyType

from tracer.errors import TraceError
from tracer.plugins import modules_in
from tracer.readers._bytes import Progress
from tracer.readers._folders import NOTHING, RUN, trace_files
from tracer.trace import Trace

WHAT_IS = "give a trace of torch.profiler (.json, .json.gz, .json.zst), an Nsight Systems .sqlite or a recording"


def load(
    path: str | Path,
    *,
    source_root: str | Path | None = None,
    samples: str | Path | None = None,
    progress: Progress | None = None,
) -> Trace:
    """The trace in a file, a folder, or on standard input (`-`).

    `source_root` is where the program's files are, for a trace that does not carry
    them; `samples` a file of py-spy taken beside it; `progress` is called with
    (bytes read, bytes in all or 0, events so far).
    """
    from tracer.readers import _sources

    path = Path(path)
    try:
        trace = _read(path, progress)
    except FileNotFoundError as error:
        raise TraceError(f"{error.filename} does not exist", fix=WHAT_IS) from None
    except OSError as error:
        raise TraceError(f"{path} cannot be read", why=str(error)) from error
    if samples is not None:
        from tracer.readers import pyspy

        trace = pyspy.merge(trace, Path(samples))
    found = _sources.find(trace, path, Path(source_root) if source_root is not None else None)
    if found:
        trace = dataclasses.replace(trace, sources=MappingProxyType(found | dict(trace.sources)))
    return trace


def _read(path: Path, progress: Progress | None) -> Trace:
    from tracer.readers import kineto

    if str(path) == "-":
        return kineto.load(path, progress)
    if (path / NOTHING).is_file():  # though a process of it may have left a manifest
        raise _nothing_recorded(path)
    head = b"" if path.is_dir() else _head(path)
    for reader in modules_in("tracer.readers"):
        if reader is not kineto and reader.accepts(path, head):
            trace: Trace = reader.load(path)
            return trace
    if kineto.accepts(path, head):  # the last to be asked: it takes any JSON
        return kineto.load(path, progress)
    if path.is_dir():
        if (path / RUN).is_file():
            raise _nothing_recorded(path)
        inside = [folder.name for folder in sorted(path.iterdir()) if folder.is_dir() and trace_files(folder)]
        fix = f"give one of the folders in it: {', '.join(inside[:5])}" if inside else WHAT_IS
        raise TraceError(f"{path} is not a trace", why="there is no trace in the folder", fix=fix)
    if not head:
        raise TraceError(f"{path} is not a trace", why="it is empty", fix=WHAT_IS)
    raise TraceError(f"{path} is not a trace", why="no reader knows its format", fix=WHAT_IS)


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4096)


def _nothing_recorded(run: Path) -> TraceError:
    """What to say of the folder of a run that came to nothing: what the run itself said at its end."""
    try:
        said = (run / NOTHING).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        said = ""
    why, _, fix = said.partition("\n  fix: ")
    return TraceError(
        f"the run in {run} recorded nothing",
        why=why.removeprefix("nothing was recorded: ") or "no process of it left a recording",
        fix=fix.strip() or "run it again: python -m tracer run",
    )
