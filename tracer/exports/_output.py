"""Where the bytes go: a file that appears when it is whole, compressed by gzip beside the packing."""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

BLOCK = 2 << 20  # bytes compressed at a time, each to a gzip member of its own
_CAREFUL = 4 << 20  # bytes at the beginning that are compressed well rather than fast: most files are no larger
_LEVEL, _CAREFUL_LEVEL = 1, 6
_AHEAD = 8  # blocks that may wait to be packed, compressed and written, so that memory stays bounded


def compressor() -> Callable[[bytes], bytes]:
    """The fastest gzip at hand: isal is three times as fast as zlib, and optional."""
    try:
        from isal import isal_zlib
    except ImportError:
        return lambda data: zlib.compress(data, _LEVEL, wbits=31)
    return lambda data: bytes(isal_zlib.compress(data, _LEVEL, wbits=31))


class Output:
    """Takes bytes, and tasks that will make some, in order; `path` is replaced only if all went well."""

    def __init__(self, path: Path, *, compress: bool = True) -> None:
        self.path = path
        self.raw_bytes = 0
        self._part = path.with_name(f".{path.name}.{os.getpid()}.part")
        self._compress = compressor() if compress else None
        self._expected = 0
        self._pool = ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1), thread_name_prefix="tracer-export")
        self._waiting: deque[Future[tuple[int, bytes]]] = deque()
        self._block: list[bytes] = []
        self._size = 0

    def __enter__(self) -> Self:
        self._file = self._part.open("wb")
        return self

    def add(self, data: bytes) -> None:
        """These bytes come next."""
        self._block.append(data)
        self._size += len(data)
        if self._size >= BLOCK:
            self._flush()

    def later(self, task: Callable[[], bytes], size: int) -> None:
        """What this task makes, about so many bytes, comes next; it is made and compressed on another thread."""
        self._flush()
        self._submit(task, size)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        whole = False
        try:
            if kind is None:
                self._flush()
                while self._waiting:
                    self._write_next()
                whole = True
        finally:
            self._pool.shutdown(cancel_futures=True)
            self._file.close()
            if whole:
                self._part.replace(self.path)
            else:
                self._part.unlink(missing_ok=True)

    def _flush(self) -> None:
        if self._block:
            block, self._block, self._size = b"".join(self._block), [], 0
            self._submit(lambda: block, len(block))

    def _submit(self, task: Callable[[], bytes], size: int) -> None:
        self._expected += size
        self._waiting.append(self._pool.submit(self._finished, task, self._expected <= _CAREFUL))
        while len(self._waiting) > _AHEAD:
            self._write_next()

    def _finished(self, task: Callable[[], bytes], careful: bool) -> tuple[int, bytes]:
        data = task()
        if self._compress is None:
            return len(data), data
        return len(data), zlib.compress(data, _CAREFUL_LEVEL, wbits=31) if careful else self._compress(data)

    def _write_next(self) -> None:
        size, data = self._waiting.popleft().result()
        self.raw_bytes += size
        self._file.write(data)
