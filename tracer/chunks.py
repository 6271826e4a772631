"""Append-only files of rows, written as they come in and readable after a crash.

A file is a row of chunks: 4 bytes magic, 4 bytes length, 4 bytes CRC-32 (both
little endian), then the rows as one MessagePack list. Whoever dies in the middle
of a chunk loses that chunk alone; `read_chunks` says how many bytes it left out.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Any

import msgspec

MAGIC = b"TRC1"
_HEAD = struct.Struct("<4sII")


def append_chunk(fd: int, rows: list[Any]) -> int:
    """Write `rows` as one chunk to an open file descriptor; bytes written.

    Raises OSError, for example when the disk is full.
    """
    body = msgspec.msgpack.encode(rows)
    data = memoryview(_HEAD.pack(MAGIC, len(body), zlib.crc32(body)) + body)
    size = len(data)
    while data:
        data = data[os.write(fd, data) :]
    return size


def read_chunks(path: Path) -> tuple[list[Any], int]:
    """All whole rows of a file, and how many bytes were damaged or cut off."""
    data = path.read_bytes()
    rows: list[Any] = []
    lost = at = 0
    while at < len(data):
        head = data[at : at + _HEAD.size]
        if len(head) == _HEAD.size:
            magic, size, check = _HEAD.unpack(head)
            body = data[at + _HEAD.size : at + _HEAD.size + size]
            if magic == MAGIC and len(body) == size and zlib.crc32(body) == check:
                rows.extend(msgspec.msgpack.decode(body))
                at += _HEAD.size + size
                continue
        following = data.find(MAGIC, at + 1)
        following = len(data) if following < 0 else following
        lost += following - at
        at = following
    return rows, lost
