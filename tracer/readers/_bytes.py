"""The bytes of a file or a pipe, unpacked as they come.

A packed file can claim to be a thousand times its size, so unpacking stops at a
limit: 512 MiB, or 100 times what was read if that is more. TRACER_MAX_UNPACKED raises it.
"""

from __future__ import annotations

import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tracer.errors import TraceError
from tracer.units import show_bytes

BLOCK = 4 << 20
PIECE = 4096
HEAD = 4096
LEAST_LIMIT = 512 << 20
MOST_RATIO = 100
VARIABLE = "TRACER_MAX_UNPACKED"
GZIP, ZSTD, BOM = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xef\xbb\xbf"

Progress = Callable[[int, int, int], None]  # bytes read, bytes in all (0: unknown), events so far


class Source:
    """A file to be read once, from start to end; `-` is standard input."""

    def __init__(self, path: Path, progress: Progress | None = None) -> None:
        self.label = "standard input" if str(path) == "-" else str(path)
        self.read = 0  # bytes taken from the file
        self.given = 0  # bytes given out, unpacked
        self.events = 0  # counted by whoever decodes them, shown as progress
        self.cut_short = ""  # why the packed stream ended early
        self._progress = progress
        self._file: BinaryIO = sys.stdin.buffer if str(path) == "-" else path.open("rb")
        self._total = 0 if str(path) == "-" else path.stat().st_size
        self._head = self._file.read(HEAD)

    @property
    def head(self) -> bytes:
        """The first bytes as they are in the file."""
        return self._head

    def blocks(self) -> Iterator[bytes]:
        """Unpacked blocks without a byte order mark."""
        with self._file:
            packed = self._packed()
            if self._head.startswith(GZIP):
                unpacked = self._limited(self._gunzip(packed))
            elif self._head.startswith(ZSTD):
                unpacked = self._limited(self._unzstd(packed))
            else:
                unpacked = packed
            first = True
            for block in unpacked:
                if first and block:
                    block = block.removeprefix(BOM)
                    first = False
                self.given += len(block)
                yield block

    def _packed(self) -> Iterator[bytes]:
        block, self._head = self._head + self._file.read(BLOCK - len(self._head)), b""
        while block:
            self.read += len(block)
            yield block
            if self._progress is not None:
                self._progress(self.read, self._total, self.events)
            block = self._file.read(BLOCK)

    def _gunzip(self, packed: Iterator[bytes]) -> Iterator[bytes]:
        make, error = _inflater()
        inflater, inside, out = make(), False, bytearray()
        for block in packed:
            # In small pieces, since damage costs what the piece it is in would have given.
            for at in range(0, len(block), PIECE):
                piece = block[at : at + PIECE]
                while piece:
                    inside = True
                    try:
                        out += inflater.decompress(piece, BLOCK)
                    except error as reason:
                        self.cut_short = f"the gzip stream is damaged: {reason}"
                        yield bytes(out)
                        return
                    piece = inflater.unconsumed_tail
                    if inflater.eof:
                        # Another member may follow; zeros are padding.
                        piece = inflater.unused_data.lstrip(b"\0")
                        inflater, inside = make(), False
                        if piece and not GZIP.startswith(piece[:2]):
                            self.cut_short = "bytes that are no gzip follow the gzip stream"
                            yield bytes(out)
                            return
                    if len(out) >= BLOCK:
                        yield bytes(out)
                        out.clear()
        if inside:
            out += inflater.flush()
            self.cut_short = "the gzip stream is cut off"
        yield bytes(out)

    def _unzstd(self, packed: Iterator[bytes]) -> Iterator[bytes]:
        try:
            import zstandard
        except ImportError:
            raise TraceError(
                f"{self.label} is compressed with zstd", fix="pip install zstandard, or unpack it first"
            ) from None
        inflater = zstandard.ZstdDecompressor().decompressobj(read_across_frames=True)
        for block in packed:
            for at in range(0, len(block), 1 << 16):
                try:
                    yield inflater.decompress(block[at : at + (1 << 16)])
                except zstandard.ZstdError as reason:
                    self.cut_short = f"the zstd stream is damaged ({reason})"
                    return

    def _limited(self, unpacked: Iterator[bytes]) -> Iterator[bytes]:
        given = os.environ.get(VARIABLE)
        fixed = _parse_size(given) if given else 0
        size = 0
        for block in unpacked:
            size += len(block)
            limit = fixed or max(LEAST_LIMIT, MOST_RATIO * self.read)
            if size > limit:
                raise TraceError(
                    f"{self.label} unpacks to more than {show_bytes(limit)}",
                    why=f"{show_bytes(self.read)} read so far; a file that unpacks to so much may be made to harm",
                    fix=f"if you trust it, set a higher limit: {VARIABLE}=20GB",
                )
            yield block


def _inflater() -> tuple[Callable[[], Any], Any]:
    """The faster of the gzip libraries at hand, and its error."""
    try:
        from isal import isal_zlib
    except ImportError:
        return lambda: zlib.decompressobj(31), zlib.error
    return lambda: isal_zlib.decompressobj(31), isal_zlib.error


def _parse_size(text: str) -> int:
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?\s*", text, re.IGNORECASE)
    if not found:
        raise TraceError(f"{VARIABLE}={text} is not a size", fix=f"write for example {VARIABLE}=20GB")
    return int(float(found[1]) * 1000 ** " KMGT".index(found[2].upper() or " "))
