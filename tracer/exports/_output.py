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

BLOCK = 8 << 20  # bytes compressed at a time, each to a gzip member of its own
_LEVEL = 1
_AHEAD = 4  # blocks that may wait for the compressor, so that memory stays bounded


def compressor() -> Callable[[bytes], bytes]:
    """The fastest gzip at hand: isal is three times as fast as zlib, and optional."""
    try:
        from isal import isal_zlib
    except ImportError:
        return lambda data: zlib.compress(data, _LEVEL, wbits=31)
    return lambda data: bytes(isal_zlib.compress(data, _LEVEL, wbits=31))


class Output:
    """Takes bytes in order and writes them to `path`, which is replaced only if all went well."""

    def __init__(self, path: Path, *, compress: bool = True) -> None:
        self.path = path
        self._part = path.with_name(f".{path.name}.{os.getpid()}.part")
        self._compress = compressor() if compress else None
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tracer-gzip")
        self._waiting: deque[Future[bytes]] = deque()
        self._block: list[bytes] = []
        self._size = 0
        self.raw_bytes = 0

    def __enter__(self) -> Self:
        self._file = self._part.open("wb")
        return self

    def add(self, data: bytes) -> None:
        """These bytes come next."""
        self.raw_bytes += len(data)
        self._block.append(data)
        self._size += len(data)
        if self._size >= BLOCK:
            self._flush()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None:
                self._flush()
                while self._waiting:
                    self._file.write(self._waiting.popleft().result())
        finally:
            self._pool.shutdown(cancel_futures=True)
            self._file.close()
            if kind is None:
                self._part.replace(self.path)
            else:
                self._part.unlink(missing_ok=True)

    def _flush(self) -> None:
        block, self._block, self._size = b"".join(self._block), [], 0
        if self._compress is None:
            self._file.write(block)
            return
        if block:
            self._waiting.append(self._pool.submit(self._compress, block))
        while len(self._waiting) > _AHEAD:
            self._file.write(self._waiting.popleft().result())
