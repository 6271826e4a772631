"""What trickles in while a program runs reaches the disk within a second, so that a crash loses little.

Rows wait in memory and are written as checksummed chunks by one thread. Nothing here
may harm the program: a full disk stops the file, and the manifest says how much is missing.
"""

from __future__ import annotations

import fcntl
import os
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tracer.chunks import append_chunk

_ROWS_IN_A_CHUNK = 4096


class Sink:
    """One chunk file; `add(row)` is cheap and may be called from any thread."""

    def __init__(self, path: Callable[[], Path]) -> None:
        self._path = path  # asked when the file is opened: its folder may still move
        self._rows: deque[list[Any]] = deque()
        self._lock = allocate_lock()
        self._fd = -1
        self._file = (-1, -1)  # device and inode behind it
        self.add: Callable[[list[Any]], None] = self._rows.append
        self.written = 0  # rows
        self.dropped = 0  # rows
        self.error = ""

    def flush(self) -> None:
        """Write what has come in."""
        with self._lock:
            while self._rows and not self.error:
                rows = [self._rows.popleft() for _ in range(min(len(self._rows), _ROWS_IN_A_CHUNK))]
                try:
                    if not self._is_ours():
                        self._fd = open_apart(self._path())
                        self._file = _behind(self._fd)
                    try:
                        append_chunk(self._fd, rows)
                    except UnicodeEncodeError:  # a file or a thread whose name is no text
                        append_chunk(self._fd, readable(rows))
                    self.written += len(rows)
                except OSError as error:
                    self.error = str(error)
                    self.dropped += len(rows)
            if self.error:
                self.dropped += len(self._rows)
                self._rows.clear()

    def _is_ours(self) -> bool:
        """Whether the number still stands for our file: a program that closes all it has gives it to its next one."""
        try:
            return self._fd >= 0 and _behind(self._fd) == self._file
        except OSError:
            return False

    def close(self) -> None:
        """Write the rest and let go of the file; rows that come later are dropped."""
        self.add = _drop
        self.flush()
        with self._lock:
            if self._is_ours():
                os.close(self._fd)
            self._fd = -1

    def forget(self) -> None:
        """Write nothing more: this is a forked child, and the file is its parent's."""
        self._lock = allocate_lock()
        self._rows.clear()
        self.add = _drop
        self.error = "forked"


def open_apart(path: Path) -> int:
    """Open a file to append to, never as 0 to 2: a program that closed its stdout must not print into it."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def _behind(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def _drop(row: list[Any]) -> None:
    pass


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, whole or not at all."""
    write_whole(path, msgspec.json.format(as_json(value), indent=1))


def as_json(value: Any) -> bytes:
    """A value as JSON, whatever bytes the system has in its names."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(readable(msgspec.to_builtins(value)))


def readable(value: Any) -> Any:
    """The same, with bytes that are no UTF-8 replaced: arguments, paths and variables may have some."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, dict):
        return {readable(name): readable(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [readable(one) for one in value]
    return value
