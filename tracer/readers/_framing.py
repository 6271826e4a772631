"""Finds the list of events in a stream of JSON and cuts it into pieces that decode on their own.

The list may be the whole file or `traceEvents` of an object, with other keys before
and after it; events may stand on lines of their own or not. A cut is a guess (the last
`}, {` of a block) that decoding proves: inside a string or a nested list it would not
decode, and then the slow way finds the events.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any

import msgspec

from tracer.errors import TraceError
from tracer.readers._salvage import CUT, Damage, salvage
from tracer.units import show_bytes

MOST_EVENT = 64 << 20  # bytes of one event, and of what stands before the events
_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_CUTS = tuple(  # the likeliest first
    re.compile(rb"\}\s*,\s*(?=\{" + begin + rb")")
    for begin in (rb'\s*"ph"', rb'\s*"(?:name|cat|pid|tid|ts|args)"', rb"")
)
_KEYS = re.compile(rb'"(baseTimeNanoseconds|displayTimeUnit|traceName|rank|world_size)"\s*:\s*("[^"\n]*"|-?\d{1,20})')

NOT_CLOSED = "the list of events is not closed: the file may have been cut off"
NO_HEAD = "what stands before the events is no JSON, left out"
NO_TAIL = "what stands after the events is no JSON, left out"
SECOND_LIST = "a second list of events in the same file, left out"
WHAT_IS = "give a trace of torch.profiler (.json, .json.gz, .json.zst), an Nsight Systems .sqlite or a recording"


Decode = Callable[[bytes], Any]  # a JSON list of events; raises msgspec.DecodeError if it is no JSON


class Framer:
    """One file: hands out what `decode` makes of the events; then `keys` holds what else the file says."""

    def __init__(self, label: str, blocks: Iterator[bytes], decode: Decode, damage: Damage) -> None:
        self.label = label  # of the file, for errors
        self.keys: dict[str, Any] = {}
        self._blocks = blocks
        self._decode = decode
        self._damage = damage
        self._offset = 0  # of the buffer's first byte in the unpacked file
        self._buffer = b""

    def batches(self) -> Iterator[Any]:
        """The events, about a block at a time."""
        self._find_list()
        end = yield from self._cut_list()
        if end is None:
            if CUT not in self._damage.found:
                self._damage.add(NOT_CLOSED, self._offset)
        else:
            self._take(end + 1)
            self._read_tail()

    def _take(self, size: int) -> None:
        self._offset += size
        self._buffer = self._buffer[size:]

    def _more(self) -> bool:
        if len(self._buffer) > MOST_EVENT:
            raise TraceError(
                f"{self.label} has something larger than {show_bytes(MOST_EVENT)} that is no list of events",
                why=f"at byte {self._offset}",
            )
        block = next(self._blocks, None)
        if block is not None:
            self._buffer += block
        return block is not None

    def _find_list(self) -> None:
        """Read on until the list of events begins."""
        searched, more = 0, True
        while more:
            more = self._more()
            start = self._buffer.lstrip()[:1]
            if start == b"[":
                return self._take(self._buffer.index(b"[") + 1)
            if start not in (b"{", b""):
                break
            for found in _LIST.finditer(self._buffer, max(searched - 32, 0)):
                head = _object(self._buffer[: found.start()] + b'"":0}')
                if head is not None:
                    self.keys |= head
                    return self._take(found.end())
            searched = len(self._buffer)
        damaged = _LIST.search(self._buffer)
        if not damaged:
            raise TraceError(f"{self.label} is not a trace", why=_why_not(self._buffer), fix=WHAT_IS)
        self._damage.add(NO_HEAD, self._offset)
        self.keys |= _known_keys(self._buffer[: damaged.start()])
        return self._take(damaged.end())

    def _cut_list(self) -> Generator[Any, None, int | None]:
        """The events; returns the place of the list's end in the buffer, None if it has none."""
        last = False
        while True:
            cut = None if last else _last_cut(self._buffer)
            if cut is None and not last:
                last = not self._more()
                continue
            if cut is not None:
                try:
                    yield self._decode(b"".join((b"[", memoryview(self._buffer)[: cut.start() + 1], b"]")))
                    self._take(cut.end())
                    continue
                except (msgspec.DecodeError, RecursionError):
                    pass
            text = self._buffer if cut is None else self._buffer[: cut.start() + 1]
            saved = salvage(text, self._offset, self._damage, last=last)
            yield self._decode(saved.text)
            if saved.end is not None:
                return saved.end
            self._take(saved.used)
            if last:
                return None
            if not saved.used:
                last = not self._more()

    def _read_tail(self) -> None:
        """The keys after the events."""
        while len(self._buffer) <= MOST_EVENT and self._more():
            pass
        if not self._buffer.strip() and not self.keys:
            return
        tail = _object(b'{"":0' + self._buffer)
        if tail is None:
            self._damage.add(NO_TAIL, self._offset)
            tail = _known_keys(self._buffer)
        if tail.pop("traceEvents", None):
            self._damage.add(SECOND_LIST, self._offset)
        self.keys |= tail


def _last_cut(buffer: bytes) -> re.Match[bytes] | None:
    """The last place between two events, as far as can be guessed."""
    for cuts in _CUTS:
        for window in (1 << 12, 1 << 16, len(buffer)):
            found = deque(cuts.finditer(buffer, max(len(buffer) - window, 0)), maxlen=1)
            if found:
                return found[0]
    return None


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        keys: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return None
    keys.pop("", None)
    return keys


def _known_keys(text: bytes) -> dict[str, Any]:
    """The few keys that matter, from text that is no JSON."""
    keys: dict[str, Any] = {}
    for name, value in _KEYS.findall(text):
        known = value.strip(b'"').decode("utf-8", "replace") if value.startswith(b'"') else int(value)
        if name in (b"rank", b"world_size"):
            keys.setdefault("distributedInfo", {})[name.decode()] = known
        else:
            keys[name.decode()] = known
    return keys


def _why_not(buffer: bytes) -> str:
    if not buffer.strip():
        return "it is empty"
    if _object(buffer) is not None:
        return "it is JSON without a list of events (traceEvents)"
    return "it is no JSON, or it ends before its events"
