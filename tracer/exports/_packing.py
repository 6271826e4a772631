"""Columns to protobuf bytes: records of one shape are a matrix, filled column by column.

- A varint may be longer than it needs to be (`0x81 0x80 0x00` is 1), so a column of
  numbers takes the same room in every record, and a record is a template with holes.
- Records of several shapes on one row of the timeline must stay in order, since
  Perfetto keeps file order among equal time stamps. They are scattered into one
  buffer, each to its own offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tracer.trace import Ints

Matrix: TypeAlias = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Hole:
    """A number that differs from record to record: a varint of `width` bytes, or 8 bytes little endian."""

    values: Any  # whole numbers; doubles where `fixed`
    width: int
    fixed: bool = False


Part: TypeAlias = bytes | Hole


def varint(number: int) -> bytes:
    """A number as short as protobuf writes it."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def tag(field: int, wire: int) -> bytes:
    """What stands before a field's value: wire 0 for a varint, 1 for 8 bytes, 2 for a length and a message."""
    return varint(field << 3 | wire)


def hole(field: int, values: Any, width: int = 0) -> list[Part]:
    """A varint field that changes; `width` 0 takes the least that holds them all."""
    return [tag(field, 0), Hole(values, width or width_of(values))]


def fixed(field: int, values: Any) -> list[Part]:
    """A field of 8 bytes that changes: fixed64, or a double if the column is one."""
    return [tag(field, 1), Hole(values, 8, fixed=True)]


def message(field: int, parts: Sequence[Part]) -> list[Part]:
    """Parts as a message inside another."""
    return [tag(field, 2) + varint(size_of(parts)), *parts]


def size_of(parts: Sequence[Part]) -> int:
    """How many bytes these parts take in each record."""
    return sum(len(p) if isinstance(p, bytes) else p.width for p in parts)


def width_of(values: Any) -> int:
    """How many bytes a varint needs for the largest of these; 10 if one is negative."""
    column = np.asarray(values)
    if not len(column):
        return 1
    if int(column.min()) < 0:
        return 10
    return max(1, -(-int(column.max()).bit_length() // 7))


def pack(parts: Sequence[Part], count: int) -> Matrix:
    """`count` records, one a row."""
    template = b"".join(p if isinstance(p, bytes) else bytes(p.width) for p in parts)
    out = np.empty((count, len(template)), np.uint8)
    out[:] = np.frombuffer(template, np.uint8)
    at = 0
    for part in parts:
        if isinstance(part, Hole):
            _fill(out, at, part)
            at += part.width
        else:
            at += len(part)
    return out


def scatter(matrices: Sequence[Matrix], places: Sequence[Ints]) -> bytes:
    """Records of several shapes as one run of bytes; `places` are the positions in it of each matrix's records."""
    if len(matrices) == 1:
        order = places[0]
        rows = matrices[0]
        return (rows if np.all(order[1:] > order[:-1]) else rows[np.argsort(order)]).tobytes()
    sizes = np.zeros(sum(len(p) for p in places), np.int64)
    for rows, at in zip(matrices, places):
        sizes[at] = rows.shape[1]
    offsets = np.cumsum(sizes) - sizes
    buffer = np.empty(int(sizes.sum()), np.uint8)
    for rows, at in zip(matrices, places):
        width = rows.shape[1]
        # A view with one item of `width` bytes at every byte, so that a whole record is one assignment.
        items: Any = np.ndarray((len(buffer) - width + 1,), f"V{width}", buffer, strides=(1,)) if len(rows) else None
        if items is not None:
            items[offsets[at]] = rows.view(f"V{width}").ravel()
    return buffer.tobytes()


def _fill(out: Matrix, at: int, part: Hole) -> None:
    if part.fixed:
        kind = np.float64 if np.asarray(part.values).dtype.kind == "f" else np.int64
        whole = np.ascontiguousarray(part.values, kind)
        out[:, at : at + 8] = whole.view(np.uint8).reshape(-1, 8)
        return
    values: NDArray[np.uint64] = np.ascontiguousarray(part.values, np.int64).view(np.uint64)
    low = min(part.width, 8)
    more = 0x8080808080808080 >> (64 - 8 * low) if part.width > 8 else (1 << (8 * low - 1)) - 1 & 0x8080808080808080
    groups = _spread(values) | np.uint64(more)
    out[:, at : at + low] = groups.view(np.uint8).reshape(-1, 8)[:, :low]
    for extra in range(8, part.width):
        byte = (values >> np.uint64(7 * extra)) & np.uint64(127)
        out[:, at + extra] = byte | np.uint64(128 if extra < part.width - 1 else 0)


def _spread(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The low 56 bits, seven to a byte: halves, then quarters, then eighths are moved apart."""
    for mask, upper, shift in (
        (0x000000000FFFFFFF, 0x00FFFFFFF0000000, 4),
        (0x00003FFF00003FFF, 0x0FFFC0000FFFC000, 2),
        (0x007F007F007F007F, 0x3F803F803F803F80, 1),
    ):
        values = (values & np.uint64(mask)) | ((values & np.uint64(upper)) << np.uint64(shift))
    return values
