"""Gets whole events out of damaged text.

The text is cut where an event seems to begin; what decodes is kept, what does not is
mended if the damage is one that exporters are known for, and else left out. Each
damage is counted with the byte where it was first seen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from tracer.trace import Loss

_EVENT_KEYS = rb'"(?:ph|name|cat|pid|tid|ts|dur|args|id|s|bp)"'
_STARTS = re.compile(rb"(?:^|\})\s*,*\s*(\{\s*" + _EVENT_KEYS + rb"\s*:)")
_NOT_NUMBERS = re.compile(rb"(?<=:)\s*[-+]?(?:nan|inf|infinity)(?:\([^)]*\))?(?=\s*[,}])", re.IGNORECASE)
_WRONG_ESCAPE = re.compile(rb'(?<!\\)(?:\\\\)*\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_SPACE = b" \t\r\n,"
_CLOSING = re.compile(rb"\}\s*(\])\s*(?:,\s*\"|\}\s*$|$)")
_any = msgspec.json.Decoder().decode
_scan = json.JSONDecoder(strict=False).raw_decode

CLEANED = "names with control characters or bytes that are not UTF-8, cleaned"
QUOTED = "strings with quotes that were not escaped, mended"
ESCAPED = "strings with wrong backslashes, mended"
NOT_NUMBER = "numbers that are none (NaN, Infinity)"
BROKEN = "events that are no JSON, left out"
MENDED = (CLEANED, QUOTED, ESCAPED)  # nothing is lost by these
CUT = "the file ends inside an event"


@dataclass
class Damage:
    """What was wrong with a file, by kind: how often and where first."""

    found: dict[str, Loss] = field(default_factory=dict)

    def add(self, what: str, offset: int, count: int = 1) -> None:
        """Count a damage."""
        known = self.found.get(what)
        if known:
            self.found[what] = Loss(what, known.offset, known.count + count)
        else:
            self.found[what] = Loss(what, offset, count)


@dataclass
class Salvaged:
    """Valid JSON array text with the events that could be saved."""

    text: bytes
    used: int  # bytes of the given text that need not be looked at again
    end: int | None  # where the list of events ends, if it does so in this text


def decodes(text: bytes) -> bool:
    """Whether this is JSON."""
    try:
        _any(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def salvage(text: bytes, offset: int, damage: Damage, *, last: bool) -> Salvaged:
    """The events in `text`, which starts with an event at `offset` of the file; `last`: nothing follows it."""
    starts = [found.start(1) for found in _STARTS.finditer(text)]
    if not starts or text[: starts[0]].strip(_SPACE):
        starts.insert(0, 0)
    bounds = [*starts, len(text)]
    good: list[bytes] = []
    used = starts[0]
    for low, high in _runs(text, bounds):
        if high - low > 1:
            good.append(text[bounds[low] : bounds[high]].rstrip(_SPACE))
            used = bounds[high]
            continue
        cut_off = high == len(bounds) - 1 and not last  # the rest of its last event is still to come
        used, ended = _look(text, bounds[low], bounds[high], cut_off, good, damage, offset)
        if ended or used < bounds[high]:
            return Salvaged(b"[" + b",".join(good) + b"]", used, used if ended else None)
    return Salvaged(b"[" + b",".join(good) + b"]", used, None)


def _look(
    text: bytes, at: int, high: int, cut_off: bool, good: list[bytes], damage: Damage, offset: int
) -> tuple[int, bool]:
    """Look at one piece closely: how far it was used, and whether the list of events ends there."""
    while True:
        at += len(text[at:high]) - len(text[at:high].lstrip(_SPACE))
        piece = text[at:high]
        if piece.startswith(b"]"):
            return at, True
        if not piece.strip(_SPACE + b"}"):
            return high, False
        whole, size = _whole(piece)
        if whole is not None:
            good.append(whole)
            at += size
            continue
        if cut_off:
            return at, False
        closing = _CLOSING.search(piece)
        mended, kinds = _mend(piece[: closing.start(1)] if closing else piece)
        if mended is not None:
            good.append(mended)
        elif high == len(text) and not closing:
            kinds = [CUT]
        for kind in kinds:
            damage.add(kind, offset + at + _first_error(piece))
        return (at + closing.start(1), True) if closing else (high, False)


def _runs(text: bytes, bounds: list[int]) -> Iterator[tuple[int, int]]:
    """Runs of pieces: of many that decode together, or of one that has to be looked at."""
    todo = [(0, len(bounds) - 1)]
    while todo:
        low, high = todo.pop()
        if high - low == 1 or decodes(b"[" + text[bounds[low] : bounds[high]].rstrip(_SPACE) + b"]"):
            yield low, high
        else:
            middle = (low + high) // 2
            todo += [(middle, high), (low, middle)]


def _whole(piece: bytes) -> tuple[bytes | None, int]:
    """The event at the start of a piece, and where it ends, if it is whole and right."""
    try:
        text = piece.decode()
        _, end = _scan(text)
    except (ValueError, RecursionError):
        return None, 0
    whole = text[:end].encode()
    return (whole, len(whole)) if decodes(whole) else (None, 0)


def _mend(piece: bytes) -> tuple[bytes | None, list[str]]:
    """One event with its damage mended, and which damages those were."""
    text, kinds = piece.rstrip(_SPACE), []
    for what, mend in ((CLEANED, _clean), (NOT_NUMBER, _null), (ESCAPED, _escape), (QUOTED, _quote)):
        changed = mend(text)
        if changed == text:
            continue
        text = changed
        kinds.append(what)
        whole, _ = _whole(text)
        if whole is not None:
            return whole, kinds
    return None, [BROKEN]


def _first_error(piece: bytes) -> int:
    try:
        _any(piece)
    except msgspec.DecodeError as error:
        found = re.search(r"\(byte (\d+)\)", str(error))
        return int(found[1]) if found else 0
    except RecursionError:
        pass
    return 0


def _clean(text: bytes) -> bytes:
    """Bytes that are not UTF-8 and control characters inside strings become U+FFFD."""
    text = text.decode("utf-8", "replace").encode()
    # Line ends between tokens are fine; one inside a string is found by what it splits.
    text = re.sub(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", "\ufffd".encode(), text)
    return re.sub(rb'"(?:[^"\\]|\\.)*"', _clean_string, text, flags=re.DOTALL)


def _clean_string(found: re.Match[bytes]) -> bytes:
    return _CONTROL.sub(b" ", found[0])


def _null(text: bytes) -> bytes:
    return _NOT_NUMBERS.sub(b" null", text)


def _escape(text: bytes) -> bytes:
    """In a string where a backslash begins no escape, none does: `C:\\Users\\new` is a path."""
    return re.sub(rb'"(?:[^"\\]|\\.)*"', _escape_string, text, flags=re.DOTALL)


def _escape_string(found: re.Match[bytes]) -> bytes:
    if not _WRONG_ESCAPE.search(found[0]):
        return found[0]
    return re.sub(rb'\\(["\\]?)', lambda one: one[0] if one[1] else b"\\\\", found[0])


_VALUE = re.compile(rb'("(?:name|cat|tid|pid|[A-Za-z_ ]+)"\s*:\s*")')
_STRING_END = re.compile(rb'"(?=\s*,\s*"[^"\\]{1,60}"\s*:|\s*\}\s*(?:$|[,}\]])|\s*\]\s*[,}])')


def _quote(text: bytes) -> bytes:
    """Quotes inside a string value are escaped: the value ends where another key or the end follows."""
    parts, at = [], 0
    while found := _VALUE.search(text, at):
        end = _STRING_END.search(text, found.end())
        if not end:
            break
        inside = re.sub(rb'(?<!\\)"', rb'\\"', text[found.end() : end.start()])
        parts.append(text[at : found.end()] + inside + b'"')
        at = end.end()
    return b"".join(parts) + text[at:]
