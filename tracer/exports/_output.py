"""Where the bytes go: a file that appears when it is whole, packed and compressed by several threads.

It is one gzip stream, though its blocks are compressed apart: each ends on a byte
(a sync flush), so that they can be put one after the other. Many small gzip members
would be easier, but Perfetto keeps 32 MB of memory for each.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

_BLOCK = 2 << 20  # bytes compressed at a time
_CAREFUL = 4 << 20  # bytes at the beginning that are compressed well rather than fast: most files are no larger
_AHEAD = 8  # blocks that may wait to be packed, compressed and written, so that memory stays bounded
_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_LAST_BLOCK = b"\x03\x00"  # a deflate block that is empty and final


def fast_zlib() -> ModuleType:
    """isal where it is installed, which is three times as fast as zlib; both have the same functions."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    found: ModuleType = isal_zlib
    return found


class Output:
    """Takes bytes, and tasks that will make some, in order; `path` is replaced only if all went well."""

    def __init__(self, path: Path, *, compress: bool = True) -> None:
        self.path = path
        self.raw_bytes = 0
        self._part = path.with_name(f".{path.name}.{os.getpid()}.part")
        self._compress = compress
        self._fast: Any = fast_zlib()
        self._crc = 0
        self._pool = ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1), thread_name_prefix="tracer-export")
        self._waiting: deque[Future[tuple[bytes, bytes]]] = deque()
        self._block: list[bytes] = []
        self._size = 0
        self._expected = 0

    def __enter__(self) -> Self:
        self._file = self._part.open("wb")
        if self._compress:
            self._file.write(_HEAD)
        return self

    def add(self, data: bytes) -> None:
        """These bytes come next."""
        self._block.append(data)
        self._size += len(data)
        if self._size >= _BLOCK:
            self._flush()

    def later(self, task: Callable[[], bytes], size: int) -> None:
        """What this task makes, about so many bytes, comes next; it is made and compressed on another thread."""
        self._flush()
        self._submit(task, size)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        whole = False
        try:
            if kind is None:
                self._finish()
                whole = True
        finally:
            self._pool.shutdown(cancel_futures=True)
            self._file.close()
            try:
                if whole:
                    self._part.replace(self.path)
            finally:
                self._part.unlink(missing_ok=True)

    def _finish(self) -> None:
        self._flush()
        while self._waiting:
            self._write_next()
        if self._compress:
            self._file.write(_LAST_BLOCK + struct.pack("<II", self._crc, self.raw_bytes & 0xFFFFFFFF))

    def _flush(self) -> None:
        if self._block:
            block, self._block, self._size = b"".join(self._block), [], 0
            self._submit(lambda: block, len(block))

    def _submit(self, task: Callable[[], bytes], size: int) -> None:
        self._expected += size
        level, library = (6, zlib) if self._expected <= _CAREFUL else (1, self._fast)
        self._waiting.append(self._pool.submit(self._made, task, library, level))
        while len(self._waiting) > _AHEAD:
            self._write_next()

    def _made(self, task: Callable[[], bytes], library: Any, level: int) -> tuple[bytes, bytes]:
        data = task()
        if not self._compress:
            return data, data
        deflate = library.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        return data, deflate.compress(data) + deflate.flush(zlib.Z_SYNC_FLUSH)

    def _write_next(self) -> None:
        data, packed = self._waiting.popleft().result()
        self.raw_bytes += len(data)
        if self._compress:
            self._crc = self._fast.crc32(data, self._crc)
        self._file.write(packed)
