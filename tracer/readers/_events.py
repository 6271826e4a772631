"""Events of a Chrome trace, typed: only the fields that we use are decoded, the rest is skipped.

- Time stamps are microseconds in decimal. A double holds the stamps that Kineto writes
  today (at most three decimals, below 2**43) exactly; others are cut from the text.
- `args` stay text until the category says which of them matter.
- Fields are typed widely, since exporters disagree: a process can be 7, "7" or "Spans".
  What breaks even these types is decoded again value by value.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

import msgspec
import numpy as np

from tracer.trace import NONE, Ints

Number = int | float | str | None
Raw = msgspec.Raw
NOTHING = Raw(b"")
NO_ARGS = Raw(b"{}")
EXACT_US = float(2**43)  # up to here the nearest double of a stamp with three decimals is that stamp's alone


class Event(msgspec.Struct, gc=False):
    """An event whose stamps are numbers."""

    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float | None = None
    dur: float | None = None
    args: Raw = NO_ARGS


class TextEvent(msgspec.Struct, gc=False):
    """The same with stamps as they stand in the text."""

    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    ts: Raw = NOTHING
    dur: Raw = NOTHING
    args: Raw = NO_ARGS


class LooseEvent(msgspec.Struct, gc=False):
    """Any JSON object."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Raw = NOTHING
    dur: Raw = NOTHING
    args: Raw = NO_ARGS


class CallArgs(msgspec.Struct, gc=False):
    """What we use of a call's `args`."""

    correlation: Number = NONE


class OpArgs(
    msgspec.Struct,
    gc=False,
    rename={
        "external": "External id",
        "sequence": "Sequence number",
        "forward": "Fwd thread id",
        "dims": "Input Dims",
    },
):
    """Of an operator's."""

    external: Number = 0
    sequence: Number = NONE
    forward: Number = NONE
    dims: Raw = NOTHING


class NestingArgs(msgspec.Struct, gc=False, rename={"external": "External id", "python": "Python id"}):
    """Of an annotation's or Python function's: ids count up in the order of starts."""

    external: Number = 0
    python: Number = 0


class PlaceArgs(msgspec.Struct, gc=False):
    """Of a row on a device that is not work."""

    device: Number = None
    stream: Number = None


class WorkArgs(
    msgspec.Struct,
    gc=False,
    rename={
        "graph_node": "graph node id",
        "collective": "Collective name",
        "group": "Process Group Name",
        "seq": "Seq",
        "elements": "In msg nelems",
        "to_device": "toDevice",
    },
):
    """Of a kernel's, copy's or fill's."""

    device: Number = None
    stream: Number = None
    correlation: Number = NONE
    bytes: Number = NONE
    grid: Raw = NOTHING
    block: Raw = NOTHING
    graph_node: Number = NONE
    to_device: Number = NONE
    collective: str | None = None
    group: Number = None
    seq: Number = NONE
    elements: Number = NONE
    dtype: str | None = None


class WaitArgs(
    msgspec.Struct,
    gc=False,
    rename={"wait_stream": "wait_on_stream", "wait_corr": "wait_on_cuda_event_record_corr_id"},
):
    """Of a synchronisation record's."""

    wait_stream: Number = NONE
    wait_corr: Number = NONE
    stream: Number = NONE
    correlation: Number = NONE
    device: Number = None


class LabelArgs(msgspec.Struct, gc=False):
    """Of a label's."""

    name: Number = None
    labels: Number = None


class MemoryArgs(
    msgspec.Struct,
    gc=False,
    rename={
        "allocated": "Total Allocated",
        "reserved": "Total Reserved",
        "device_id": "Device Id",
        "device_type": "Device Type",
    },
):
    """Of an allocation's."""

    allocated: Number = None
    reserved: Number = None
    device_id: Number = None
    device_type: Number = None


_as_events = msgspec.json.Decoder(list[Event]).decode
_as_text_events = msgspec.json.Decoder(list[TextEvent]).decode
_as_raw = msgspec.json.Decoder(list[Raw]).decode
_as_loose = msgspec.json.Decoder(LooseEvent).decode
_T = TypeVar("_T", bound=msgspec.Struct)


class EventDecoder:
    """Decodes the events of one file."""

    def __init__(self) -> None:
        self.strange = 0  # things in the list that are no events
        self.in_text = False  # whether stamps have to be cut from the text

    def decode(self, text: bytes) -> list[Any]:
        """A JSON list of events. Raises msgspec.DecodeError if it is no JSON."""
        try:
            return _as_text_events(text) if self.in_text else _as_events(text)
        except msgspec.ValidationError:
            return self._loosely(text)

    def _loosely(self, text: bytes) -> list[TextEvent]:
        events = []
        for raw in _as_raw(text):
            try:
                loose = _as_loose(raw)
            except msgspec.ValidationError:
                self.strange += 1
                continue
            ph, cat, name = (None if part is None else str(part) for part in (loose.ph, loose.cat, loose.name))
            pid, tid = (part if part is None or isinstance(part, int) else str(part) for part in (loose.pid, loose.tid))
            events.append(TextEvent(ph, cat, name, pid, tid, loose.ts, loose.dur, loose.args))
        return events


def decode_args(raws: list[Raw], kind: type[_T]) -> list[_T]:
    """The `args` of many events, as one type."""
    text = b"[" + b",".join(raws) + b"]"
    try:
        return msgspec.json.decode(text, type=list[kind])  # type: ignore[valid-type]
    except (msgspec.DecodeError, RecursionError):
        return [_args_loosely(raw, kind) for raw in raws]


def _args_loosely(raw: Raw, kind: type[_T]) -> _T:
    """One event's `args`; a field of another type than expected is left out, the others are kept."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, RecursionError):
        pass
    args = kind()
    try:
        fields = msgspec.json.decode(bytes(raw).decode("utf-8", "replace"), type=dict[str, Raw])
    except (msgspec.DecodeError, RecursionError):
        return args
    for name, key in zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True):
        try:
            setattr(
                args,
                name,
                getattr(msgspec.json.decode(b'{"%s":%s}' % (key.encode(), bytes(fields[key])), type=kind), name),
            )
        except (KeyError, msgspec.DecodeError, RecursionError):
            continue
    return args


def ns_of(stamps: list[Any]) -> Ints | None:
    """Nanoseconds from microseconds; NONE where there is no number. None if doubles do not hold them exactly."""
    if stamps and isinstance(stamps[0], Raw):
        return ns_of_texts(stamps)
    column = np.array(stamps, np.float64)
    known = np.isfinite(column)
    if not known.all():
        column[~known] = 0
    whole = np.floor(column)
    ns = whole.astype(np.int64) * 1000 if len(column) == 0 or np.abs(column).max() < 2.0**53 else None
    if ns is None:
        return None
    column -= whole
    if np.abs(whole).max(initial=0) >= EXACT_US and column.any():
        return None
    column *= 1000
    ns += np.rint(column).astype(np.int64)
    ns[~known] = NONE
    return ns


def ns_of_texts(raws: list[Raw]) -> Ints:
    """Nanoseconds from the texts of numbers of microseconds, quoted or not; NONE for what is none."""
    plain = b",".join(raws) + b","
    if plain.count(b".") != len(raws):
        texts = [bytes(raw) or b"null" for raw in raws]
        plain = b",".join([text if b"." in text else text.strip(b'" ') + b".0" for text in texts]) + b","
    plain = plain.translate(None, b'" ')
    if raws and not plain.translate(None, b"0123456789.,"):
        marks = np.frombuffer(plain, np.uint8)
        dots, commas = np.flatnonzero(marks == ord(".")), np.flatnonzero(marks == ord(","))
        if len(dots) == len(commas) == len(raws):
            decimals = commas - dots - 1
            digits = dots - np.concatenate(([-1], commas[:-1])) - 1
            if decimals.min() >= 1 and decimals.max() <= 3 and digits.min() >= 1 and digits.max() <= 16:
                parts = np.fromstring(plain[:-1].replace(b".", b","), np.int64, sep=",")
                return np.asarray(parts[0::2] * 1000 + parts[1::2] * 10 ** (3 - decimals), np.int64)
    return np.array([_ns_of_text(bytes(raw)) for raw in raws], np.int64)


def _ns_of_text(text: bytes) -> int:
    try:
        value = Decimal(text.strip(b'" \t\r\n').decode("ascii")) * 1000
        return int(value.to_integral_value()) if abs(value) < 2**62 else NONE
    except (InvalidOperation, UnicodeDecodeError, ValueError):
        return NONE


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
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        return np.array([integer(value) for value in values], np.int64)
