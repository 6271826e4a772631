"""One event of a Chrome trace, typed: only the fields that we use are decoded, the rest is skipped.

- Time stamps are microseconds in decimal. A double holds the stamps that Kineto writes
  today (at most three decimals, below 2**43) exactly; others are cut from the text.
- Fields are typed widely, since exporters disagree: a process can be 7, "7" or "Spans".
- A file that breaks even these types is decoded again, value by value (`decode_loosely`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
import numpy as np

from tracer.trace import NONE, Ints

Number = int | float | str | None
NOTHING = msgspec.Raw(b"")
EXACT_US = float(2**43)  # up to here the nearest double of a stamp with three decimals is that stamp's alone


class Args(
    msgspec.Struct,
    gc=False,
    rename={
        "sequence": "Sequence number",
        "forward": "Fwd thread id",
        "dims": "Input Dims",
        "graph_node": "graph node id",
        "sync_kind": "cuda_sync_kind",
        "wait_stream": "wait_on_stream",
        "wait_corr": "wait_on_cuda_event_record_corr_id",
        "collective": "Collective name",
        "group": "Process Group Name",
        "seq": "Seq",
        "elements": "In msg nelems",
        "to_device": "toDevice",
        "allocated": "Total Allocated",
        "reserved": "Total Reserved",
        "device_id": "Device Id",
        "device_type": "Device Type",
    },
):
    """What we use of `args`."""

    correlation: Number = None
    device: Number = None
    stream: Number = None
    bytes: Number = None
    sequence: Number = None
    forward: Number = None
    dims: msgspec.Raw = NOTHING
    grid: msgspec.Raw = NOTHING
    block: msgspec.Raw = NOTHING
    graph_node: Number = None
    sync_kind: str | None = None
    wait_stream: Number = None
    wait_corr: Number = None
    collective: str | None = None
    group: Number = None
    seq: Number = None
    elements: Number = None
    dtype: str | None = None
    to_device: Number = None
    allocated: Number = None
    reserved: Number = None
    device_id: Number = None
    device_type: Number = None
    name: Number = None
    labels: Number = None


class Event(msgspec.Struct, gc=False):
    """An event whose stamps are numbers."""

    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float | None = None
    dur: float | None = None
    args: Args | None = None


class TextEvent(msgspec.Struct, gc=False):
    """The same with stamps as they stand in the text."""

    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    ts: msgspec.Raw = NOTHING
    dur: msgspec.Raw = NOTHING
    args: Args | None = None


class LooseEvent(msgspec.Struct, gc=False):
    """Any JSON object."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = NOTHING
    dur: msgspec.Raw = NOTHING
    args: Any = None


NO_ARGS = Args()
_as_events = msgspec.json.Decoder(list[Event]).decode
_as_text_events = msgspec.json.Decoder(list[TextEvent]).decode
_as_anything = msgspec.json.Decoder(list[Any]).decode
_as_raw = msgspec.json.Decoder(list[msgspec.Raw]).decode
_as_loose = msgspec.json.Decoder(LooseEvent).decode


def stamps_are_exact(values: Sequence[float | None]) -> bool:
    """Whether doubles hold these stamps to the nanosecond."""
    column = np.array(values, np.float64)
    column = column[np.isfinite(column)]
    return not len(column) or bool((np.abs(column) < EXACT_US).all() or (column == np.floor(column)).all())


def ns_of_numbers(values: Sequence[float | None]) -> Ints:
    """Nanoseconds from microseconds in doubles; NONE where there is no finite number."""
    column = np.array(values, np.float64)
    known = np.isfinite(column) & (np.abs(column) < 2.0**53)
    column[~known] = 0
    whole = np.floor(column)
    ns = whole.astype(np.int64) * 1000 + np.rint((column - whole) * 1000).astype(np.int64)
    ns[~known] = NONE
    return ns


_STAMP = re.compile(rb'\s*"?\s*(-?)(\d{1,16})(?:\.(\d*))?\s*"?\s*')


def ns_of_text(raw: msgspec.Raw) -> int:
    """Nanoseconds from the text of a number of microseconds, quoted or not; NONE if it is none."""
    text = bytes(raw)
    found = _STAMP.fullmatch(text)
    if found:
        fraction = found[3] or b""
        if len(fraction) <= 3:
            ns = int(found[2]) * 1000 + int(fraction.ljust(3, b"0") or 0)
            return -ns if found[1] else ns
    try:
        value = Decimal(text.strip(b'" \t\r\n').decode("ascii")) * 1000
        ns = int(value.to_integral_value()) if abs(value) < 2**62 else NONE
    except (InvalidOperation, UnicodeDecodeError, ValueError):
        return NONE
    return ns


def ns_of_texts(values: Iterable[msgspec.Raw]) -> Ints:
    """The same for many."""
    return np.array([ns_of_text(raw) for raw in values], np.int64)


def integer(value: Any) -> int:
    """An id from whatever stands there: 7, "7", "stream 7", 7.0; NONE if nothing does."""
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else NONE
    if isinstance(value, float):
        return int(value) if abs(value) < 2**62 else NONE
    if isinstance(value, str):
        found = re.search(r"-?\d{1,18}", value)
        return int(found[0]) if found else NONE
    return NONE


def integers(values: list[Any]) -> Ints:
    """A column of ids; NONE for what is no number."""
    try:
        return np.array([NONE if v is None else v for v in values], np.int64)
    except (TypeError, ValueError, OverflowError):
        return np.array([integer(v) for v in values], np.int64)
