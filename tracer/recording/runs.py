"""One run of a program: its folder, what its processes are told, and what they tell.

The parent leaves `run.json` in the folder and its path in the environment. A process
that records answers by lines in `events.jsonl`, each written at once, so that they
neither mix nor get lost.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import msgspec

from tracer import config
from tracer.errors import UsageError
from tracer.recording.store import as_json, readable, write_json

VARIABLE = "TRACER_RUN"  # the run's folder, for every process of the run
_EVENTS = "events.jsonl"


class RunFile(msgspec.Struct, frozen=True):
    """run.json: what the processes of a run must know."""

    run_id: str
    name: str
    argv: list[str]
    kind: str  # script, module, command or library
    window: config.Window
    record: config.Record
    parent: int  # process id of `tracer run`; 0 if nobody watches
    started_unix_ns: int
    progress: bool = False  # whether somebody looks at how far the program is
    exit_status: int | None = None  # as a shell would say it: 128 + n for a signal


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a process tells its parent."""

    pid: int
    what: str  # reached, armed, waiting, warming, open, closed, writing, written, alone
    folder: str = ""
    number: int = 0
    of: int = 0
    text: str = ""


def make_folder(output: Path, name: str) -> Path:
    """A new folder `NAME-TIME` for a run."""
    stem = f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name).strip('-.') or 'run'}-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        str(output.absolute()).encode()
        for turn in range(100):
            folder = output / (stem if turn == 0 else f"{stem}.{turn}")
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                if folder.is_dir():
                    continue
                raise
            return folder.resolve()
    except OSError as error:
        raise cannot_write(output, error) from error
    except UnicodeEncodeError as error:  # nor could anyone be told of it
        raise UsageError(
            f"the recording cannot be written to {readable(str(output.absolute()))}",
            why="its path holds bytes that are no UTF-8",
            fix="choose another place: output.folder=/some/where",
        ) from error
    raise UsageError(f"there are too many folders {output / stem}*", fix="choose another output.name")


def cannot_write(output: Path, error: OSError) -> UsageError:
    """What to say where there is no place for a recording."""
    return UsageError(
        f"the recording cannot be written to {output}",
        why=f"{error.strerror or error}",
        fix="choose another place: output.folder=/some/where",
    )


def write_run(folder: Path, run: RunFile) -> None:
    """Leave word for the processes of the run."""
    write_json(folder / "run.json", run)


def read_run(folder: Path) -> RunFile:
    """What the parent left."""
    return msgspec.json.decode((folder / "run.json").read_bytes(), type=RunFile)


def tell(run_folder: Path, what: str, **fields: Any) -> None:
    """Tell the parent something; a full disk loses it."""
    line = as_json(Event(os.getpid(), what, **fields)) + b"\n"
    try:
        fd = os.open(run_folder / _EVENTS, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, line)
        finally:
            os.close(fd)
    except OSError:
        return


class Listener:
    """Reads what the processes of a run have told since the last time."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _EVENTS
        self._at = 0

    def news(self) -> list[Event]:
        """The new events, whole lines only."""
        try:
            if self._path.stat().st_size == self._at:
                return []
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        return [msgspec.json.decode(line, type=Event) for line in whole.splitlines()]
