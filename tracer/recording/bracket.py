"""Between which marks the guilty launch lies, from the ring that a process left."""

from __future__ import annotations

import linecache
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracer.recording.ring import LINE, NO_SLOT, OP, RingImage, Slot

_WAITING = re.compile(r"\.(?:join|backward|result|wait|get|acquire|recv)\(|\bsleep\(")
_NEAR = 64  # records: another thread's line that is older than this is not in the middle of launching


@dataclass(frozen=True, slots=True)
class Launch:
    """One record of the ring, in words."""

    seq: int
    file: str
    line: int
    function: str
    op: str
    thread: str
    stack: tuple[tuple[str, int, str], ...]  # file, line, function; innermost first
    autograd: int


@dataclass(frozen=True, slots=True)
class Bracket:
    """What a stream was doing when it died."""

    device: int
    stream: int
    landed: Launch | None  # the last mark that the GPU passed: what comes after it is guilty
    lines: tuple[tuple[str, int], ...]  # the lines that may be guilty, the likeliest first
    functions: tuple[str, ...]  # in which they are
    pending: int  # marks that the GPU never reached
    in_flight: tuple[Launch, ...]  # launches after the landed mark, newest first
    times: int | None  # how often the likeliest line had run before, by the ring
    forward: Launch | None  # the forward op whose gradient was being computed


def find_brackets(image: RingImage, show: int = 12) -> list[Bracket]:
    """One bracket for each stream that had marks, the most suspicious first.

    A stream that had passed all its marks may still be guilty, by work launched
    after the last of them, but one with marks that never landed comes first.
    """
    found = [_bracket(image, slot, show) for slot in image.slots]
    return sorted(found, key=lambda bracket: (bracket.pending == 0, -(bracket.landed.seq if bracket.landed else 0)))


def _bracket(image: RingImage, slot: Slot, show: int) -> Bracket:
    pending = image.pending(slot.slot)
    after = int(pending["seq"][0]) if len(pending) else int(image.records["seq"].max(initial=0)) + 1
    landed = image.record(slot.landed) if slot.landed else None
    lines = _suspects(image, slot, landed, after) if landed is not None else {}
    first = next(iter(lines), None)
    return Bracket(
        slot.device,
        slot.stream,
        show_record(image, landed) if landed is not None else None,
        tuple(lines),
        tuple(lines.values()),
        len(pending),
        _in_flight(image, slot, show),
        times_before(image, *first, int(landed["seq"])) if first and landed is not None else None,
        find_forward(image, landed) if landed is not None else None,
    )


def _suspects(image: RingImage, slot: Slot, landed: Any, after: int) -> dict[tuple[str, int], str]:
    """The lines whose launches may lie between the landed mark and the next one."""
    records = image.records
    before = records[records["seq"] < after]
    lines: dict[tuple[str, int], str] = {}
    # Lines between thinned marks do not say which thread they are of.
    inside = before[(before["seq"] >= slot.landed) & np.isin(before["tid"], (0, landed["tid"]))]
    for record in inside[(inside["slot"] == NO_SLOT) | (inside["seq"] == slot.landed)]:
        _add(lines, image, record)
    # Another thread that launches on this stream may have been in the middle of a line of its own.
    others = before[(before["slot"] == slot.slot) & (before["tid"] != landed["tid"])]
    for tid in np.unique(others["tid"]):
        last = others[others["tid"] == tid][-1]
        if int(last["seq"]) > slot.landed - _NEAR and not _waits(image, last):
            _add(lines, image, last)
    if not lines:
        # Work of autograd's own threads: the line that waits for it is the last that another thread began.
        known = before[(before["code"] >= 0) & (before["tid"] != landed["tid"])]
        known = known if len(known) else before[before["code"] >= 0]
        if len(known):
            _add(lines, image, known[-1])
    return lines


def _waits(image: RingImage, record: Any) -> bool:
    """Whether a thread launches nothing just now: its operators are watched and it has begun none, or it waits."""
    if (image.records["kind"] == OP).any() and int(record["kind"]) != OP:
        return True
    if int(record["code"]) < 0:
        return True
    text = linecache.getline(image.codes[int(record["code"])][0], int(record["line"]))
    return _WAITING.search(text) is not None


def _in_flight(image: RingImage, slot: Slot, show: int) -> tuple[Launch, ...]:
    """What was launched after the landed mark, newest first: operators if they were watched, else lines."""
    records = image.records
    flying = records[(records["seq"] >= slot.landed) & ((records["slot"] == slot.slot) | (records["slot"] == NO_SLOT))]
    ops = flying[flying["kind"] == OP]
    return tuple(show_record(image, record) for record in (ops if len(ops) else flying)[::-1][:show])


def _add(lines: dict[tuple[str, int], str], image: RingImage, record: Any) -> None:
    if int(record["code"]) >= 0:
        file, function, _ = image.codes[int(record["code"])]
        lines[file, int(record["line"])] = function


def times_before(image: RingImage, file: str, line: int, seq: int) -> int | None:
    """How often a line had begun before the record `seq`, not counting the last time; None if the ring forgot."""
    codes = [code for code, (name, _, _) in image.codes.items() if name == file]
    records = image.records
    same = records[np.isin(records["code"], codes) & (records["line"] == line) & (records["seq"] <= seq)]
    begun = same[same["kind"] == LINE]
    if not len(begun):
        # Without line events: its operators, of which the last is the one in question.
        begun = same[same["op"] == same["op"][-1]] if len(same) else same
    return len(begun) - 1 if len(begun) and not image.wrapped else None


def find_forward(image: RingImage, record: Any) -> Launch | None:
    """The forward op with the same autograd sequence number as a record of the backward pass."""
    if int(record["autograd"]) < 0 or not _is_backward(image, record):
        return None
    records = image.records
    same = records[
        (records["autograd"] == record["autograd"]) & (records["kind"] == OP) & (records["seq"] < record["seq"])
    ]
    # The node is made just before its op is dispatched: the first with its number is the one.
    return next((show_record(image, other) for other in same if not _is_backward(image, other)), None)


def _is_backward(image: RingImage, record: Any) -> bool:
    return "Backward" in image.ops.get(int(record["op"]), "").partition(": ")[0]


def show_record(image: RingImage, record: Any) -> Launch:
    """A record with its numbers replaced by their meanings."""
    file, function, _ = image.codes.get(int(record["code"]), ("", "", 0))
    stack = []
    for code, line in image.stacks.get(int(record["stack"]), ()):
        where = image.codes.get(code, ("", "", 0))
        stack.append((where[0], line, where[1]))
    return Launch(
        int(record["seq"]),
        file,
        int(record["line"]),
        function,
        image.ops.get(int(record["op"]), ""),
        image.threads.get(int(record["tid"]), str(int(record["tid"]))),
        tuple(stack),
        int(record["autograd"]),
    )
