"""Events of a Chrome trace, typed: only the fields that we use are decoded, the rest is skipped.

- Events of today's torch.profiler are tried first, then any event, then any value.
- Stamps are doubles, or stay text where doubles do not hold them (`_stamps.py`).
- `args` stay text until the kind of the event says which of them matter (`_args.py`).
- Fields are typed widely, since exporters disagree: a process can be 7, "7" or "Spans".
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

Raw = msgspec.Raw
NOTHING = Raw(b"")
NO_ARGS = Raw(b"{}")


# What torch.profiler writes today decodes twice as fast with its words known beforehand.
_Category = Literal[
    "cpu_op",
    "user_annotation",
    "gpu_user_annotation",
    "python_function",
    "cuda_runtime",
    "cuda_driver",
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "cuda_sync",
    "overhead",
    "Trace",
]


class Span(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """A row of the timeline, of today's categories."""

    ph: ClassVar[str] = "X"
    cat: _Category | None = None
    name: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float | None = None
    dur: float | None = None
    args: Raw = NO_ARGS


class FlowStart(msgspec.Struct, gc=False, tag_field="ph", tag="s"):
    """One end of an arrow, which says nothing that correlation ids do not."""

    ph: ClassVar[str] = "s"


class FlowEnd(msgspec.Struct, gc=False, tag_field="ph", tag="f"):
    """The other end."""

    ph: ClassVar[str] = "f"


class Label(msgspec.Struct, gc=False, tag_field="ph", tag="M"):
    """A name of a process or thread."""

    ph: ClassVar[str] = "M"
    name: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float | None = None
    args: Raw = NO_ARGS


class Instant(msgspec.Struct, gc=False, tag_field="ph", tag="i"):
    """A mark without duration."""

    ph: ClassVar[str] = "i"
    name: str | None = None
    ts: float | None = None
    args: Raw = NO_ARGS


class Event(msgspec.Struct, gc=False):
    """Any event whose stamps are numbers."""

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


_as_known = msgspec.json.Decoder(list[Span | FlowStart | FlowEnd | Label | Instant]).decode
_as_events = msgspec.json.Decoder(list[Event]).decode
_as_text_events = msgspec.json.Decoder(list[TextEvent]).decode
_as_raw = msgspec.json.Decoder(list[Raw]).decode
_as_loose = msgspec.json.Decoder(LooseEvent).decode


class EventDecoder:
    """Decodes the events of one file."""

    def __init__(self) -> None:
        self.strange = 0  # things in the list that are no events
        self.in_text = False  # whether stamps have to be cut from the text
        self._known = True  # whether all events so far were of today's

    def decode(self, text: bytes) -> list[Any]:
        """A JSON list of events. Raises msgspec.DecodeError if it is no JSON."""
        if self._known and not self.in_text:
            try:
                return _as_known(text)
            except msgspec.ValidationError:
                self._known = False
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
            pid, tid = (part if part is None or type(part) is int else str(part) for part in (loose.pid, loose.tid))
            events.append(TextEvent(ph, cat, name, pid, tid, loose.ts, loose.dur, loose.args))
        return events
