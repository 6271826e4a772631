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
_NOT_NUMBERS = re.compile(
    rb"(?<=:)\s*[-+]?(?:nan|inf|infinity|n/a|\d\.#(?:inf|ind|qnan)\d*)(?:\([^)]*\))?(?=\s*[,}])", re.IGNORECASE
)
_WRONG_ESCAPE = re.compile(rb'(?<!\\)(?:\\\\)*\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_SPACE = b" \t\r\n,"
_CLOSING = re.compile(rb"\}\s*(\])\s*(?:,\s*\"|\}\s*$|$)")
_any = msgspec.json.Decoder().decode
_scan = json.JSONDecoder(strict=False).raw_decode

_HALF_PAIR = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
CLEANED = "names with control characters or bytes that are not UTF-8, cleaned"
QUOTED = "strings with quotes that were not escaped, mended"
ESCAPED = "strings with wrong backslashes, mended"
NOT_NUMBER = "numbers that are none (NaN, Infinity, N/A), left out"
BROKEN = "events that are no JSON, left out"
MENDED = (CLEANED, QUOTED, ESCAPED, NOT_NUMBER)  # nothing is lost by these
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
    search = _Search(text, offset, damage, last)
    search.at = starts[0]
    for low, high in _runs(text, bounds):
        if high - low > 1 and search.at <= bounds[low]:
            search.good.append(text[bounds[low] : bounds[high]].rstrip(_SPACE))
            search.at = bounds[high]
        elif search.at < bounds[high] and not search.look(bounds[high]):
            break
    whole = b"[" + b",".join(search.good) + b"]"
    return Salvaged(whole, search.at, search.at if search.ended else None)


class _Search:
    """Looks at damaged text closely, event by event."""

    def __init__(self, text: bytes, offset: int, damage: Damage, last: bool) -> None:
        self.good: list[bytes] = []
        self.at = 0  # how far the text is used
        self.ended = False  # whether the list of events ends at `at`
        self._text = text
        self._offset = offset
        self._damage = damage
        self._last = last

    def look(self, high: int) -> bool:
        """Go on to `high`, where another event seems to begin, or beyond; False if the text is done with."""
        while self.at < high:
            piece = self._text[self.at : high]
            self.at += len(piece) - len(piece.lstrip(_SPACE))
            piece = piece.lstrip(_SPACE)
            if piece.startswith(b"]"):
                self.ended = True
                return False
            if not piece.strip(_SPACE + b"}"):
                self.at = high
                return True
            wrong, where = _first_error(memoryview(self._text)[self.at :])
            if not wrong and self._take_whole(high):
                continue
            if wrong == "truncated" and not self._last:
                return False  # the rest of this event is still to come
            self._mend(piece, where)
        return not self.ended

    def _take_whole(self, high: int) -> bool:
        """Take the event at `at`; it may end beyond `high` if what seemed to begin there was inside it."""
        for end in (high, high + 4_096, high + 262_144, len(self._text)):
            whole, size = _whole(self._text[self.at : end])
            if whole is not None:
                self.good.append(whole)
                self.at += size
                return True
        return False

    def _mend(self, piece: bytes, where: int) -> None:
        closing = _CLOSING.search(piece)
        mended, kinds = _mend(piece[: closing.start(1)] if closing else piece)
        if mended is not None:
            self.good.append(mended)
        elif self.at + len(piece) == len(self._text) and not closing:
            kinds = [CUT]
        for kind in kinds:
            self._damage.add(kind, self._offset + self.at + min(where, len(piece)))
        self.at += closing.start(1) if closing else len(piece)
        self.ended = closing is not None


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


def _first_error(text: memoryview) -> tuple[str, int]:
    """What is wrong with the event at the start of the text, and where; nothing is if it is whole."""
    try:
        _any(text)
    except msgspec.DecodeError as error:
        if "trailing characters" in str(error):
            return "", 0
        found = re.search(r"\(byte (\d+)\)", str(error))
        return ("truncated" if "truncated" in str(error) else "malformed"), int(found[1]) if found else 0
    except RecursionError:
        return "malformed", 0
    return "", 0


def _clean(text: bytes) -> bytes:
    """Bytes that are not UTF-8, control characters and halves of surrogate pairs inside strings become U+FFFD."""
    text = text.decode("utf-8", "replace").encode()
    # Line ends between tokens are fine; one inside a string is found by what it splits.
    text = re.sub(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", "\ufffd".encode(), text)
    text = _HALF_PAIR.sub(rb"\\ufffd", text)
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
