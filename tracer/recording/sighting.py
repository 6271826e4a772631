"""What one run showed of the error: the rings that its processes left, and its stderr, as one Sighting."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracer.recording.bracket import Bracket, Launch, find_brackets, find_forward, show_record, times_before
from tracer.recording.device_errors import Stderr, classify
from tracer.recording.rerun import Outcome
from tracer.recording.ring import LINE, RingImage, read_ring
from tracer.recording.session import is_user_file
from tracer.results import Flying, Place, Sighting

_SHOWN = 12


@dataclass(frozen=True, slots=True)
class _Error:
    """An exception that spoke of CUDA."""

    mono_ns: int
    seq: int
    text: str
    frames: tuple[tuple[str, int, str, bool], ...]  # file, line, function, the user's own; outermost first
    thread: str

    @property
    def users(self) -> list[tuple[str, int, str, bool]]:
        return [frame for frame in self.frames if frame[3]]


def read_rings(folder: Path) -> list[RingImage]:
    """The rings of all processes of a run; what is damaged is left out."""
    images = []
    for path in sorted(folder.glob("*.ring")):
        try:
            images.append(read_ring(path))
        except (ValueError, OSError):
            continue
    return images


def sight(folder: Path, outcome: Outcome, *, blocking: bool) -> Sighting:
    """Bring together what the rings and stderr say."""
    images = sorted(read_rings(folder), key=_began_to_fail)
    guilty = next((image for image in images if _began_to_fail(image) < _NEVER), None)
    stderr = outcome.stderr
    if guilty is None and (stderr.assertions or stderr.error):
        # It died without a word from Python: the process that never came to its end.
        unfinished = [image for image in images if not any(event[0] == "exit" for event in image.events)]
        guilty = unfinished[0] if unfinished else None
    if guilty is None:
        return _from_stderr(folder, outcome, blocking)
    errors = _errors(guilty)
    first = next((error for error in errors if error.users), errors[0] if errors else None)
    brackets = find_brackets(guilty, _SHOWN) if _marked_to_the_end(guilty) else []
    bracket = brackets[0] if brackets else None
    reported = _place_of(first.users[-1], "traceback") if first and first.users else _last_place(stderr.frames)
    library = _place_of(first.frames[-1], "traceback") if first and first.frames and not first.frames[-1][3] else None
    op, forward, times = _op_and_forward(guilty, bracket, first, blocking)
    return Sighting(
        blocking,
        outcome.status,
        outcome.seconds,
        reproduced=True,
        error=_text(first, stderr.error, stderr.assertions),
        reported=reported,
        reported_library=library,
        bracket=_bracket_places(bracket),
        marks=bracket.pending if bracket else 0,
        marks_from=_kind_of_marks(guilty),
        op=op,
        callers=_callers(bracket, first, blocking),
        times=times,
        forward=_place(forward.file, forward.line, forward.function, "marks") if forward else None,
        offending=_offending(guilty, op),
        in_flight=tuple(_flying(launch) for launch in bracket.in_flight) if bracket else (),
        assertions=tuple(assertion.show() for assertion in stderr.assertions),
        later=_later(errors, reported),
        process=_process(guilty, first),
        others=_others(images, guilty, brackets),
    )


def _marked_to_the_end(image: RingImage) -> bool:
    """Whether the marks tell of the failure: if they broke off, only where the GPU had not yet passed the last one."""
    broke = next((event for event in image.events if event[0] == "no_marks"), None)
    if broke is None:
        return True
    return any((image.pending(slot.slot)["seq"] <= broke[2]).any() for slot in image.slots)


def _bracket_places(bracket: Bracket | None) -> tuple[Place, ...]:
    if bracket is None:
        return ()
    return tuple(
        _place(file, line, function, "marks")
        for (file, line), function in zip(bracket.lines, bracket.functions, strict=True)
    )


def _callers(bracket: Bracket | None, first: _Error | None, blocking: bool) -> tuple[Place, ...]:
    """The user's frames above the cause, innermost first: of the traceback only where the cause is its line."""
    if not blocking and bracket is not None and bracket.landed is not None:
        return tuple(_place(file, line, name, "marks") for file, line, name in bracket.landed.stack[1:])
    return tuple(_place_of(frame, "traceback") for frame in reversed(first.users[:-1])) if first else ()


def sight_own(folder: Path, error: BaseException) -> Sighting | None:
    """The same from inside a program that is still alive; None if the error does not speak of CUDA."""
    stderr = Stderr()
    stderr.feed(f"{type(error).__name__}: {error}")
    found = sight(folder, Outcome(None, 0.0, stderr), blocking=False)
    return found if found.reproduced else None


def _from_stderr(folder: Path, outcome: Outcome, blocking: bool) -> Sighting:
    stderr = outcome.stderr
    return Sighting(
        blocking,
        outcome.status,
        outcome.seconds,
        reproduced=bool(stderr.error or stderr.assertions),
        error=_text(None, stderr.error, stderr.assertions),
        reported=_last_place(stderr.frames),
        marks_from=f"no marks: {_why_none(folder)}",
        assertions=tuple(assertion.show() for assertion in stderr.assertions),
    )


def _why_none(folder: Path) -> str:
    failed = next(iter(sorted(folder.glob("*.failed"))), None)
    if failed is None:
        return "no process brought CUDA up through torch"
    return f"they could not be set up: {failed.read_text(encoding='utf-8')}"


_NEVER = 1 << 63


def _began_to_fail(image: RingImage) -> int:
    return min((int(event[1]) for event in image.events if event[0] in ("dead", "error", "op_error")), default=_NEVER)


def _errors(image: RingImage) -> list[_Error]:
    found = []
    for kind, mono_ns, seq, *rest in image.events:
        if kind == "error":
            frames = tuple((str(f), int(line), str(name), bool(own)) for f, line, name, own in rest[2])
            thread = image.threads.get(int(rest[3]), str(rest[3]))
            found.append(_Error(int(mono_ns), int(seq), str(rest[1]), frames, thread))
    return found


def _text(first: _Error | None, printed: str, assertions: Sequence[object]) -> str:
    if first is not None:
        return first.text.partition("\n")[0]
    return printed or ("CUDA error: device-side assert triggered" if assertions else "")


def _op_and_forward(
    image: RingImage, bracket: Bracket | None, first: _Error | None, blocking: bool
) -> tuple[str, Launch | None, int | None]:
    """The operator, its forward, and how often the line had run."""
    if not blocking:
        if bracket is None or bracket.landed is None:
            return "", None, None
        return bracket.landed.op, bracket.forward, bracket.times
    failed = next((event for event in image.events if event[0] == "op_error"), None)
    op, forward = "", None
    if failed is not None:
        record = image.record(int(failed[2]))
        if record is not None:
            op = show_record(image, record).op
            forward = find_forward(image, record)
    times = None
    if first is not None and first.users:
        file, line, *_ = first.users[-1]
        times = times_before(image, file, line, first.seq)
    return op, forward, times


def _offending(image: RingImage, op: str) -> tuple[str, ...]:
    """What was found wrong with the inputs of the last operator that was looked at."""
    found = [event for event in image.events if event[0] == "offending"]
    if not found:
        return ()
    last = found[-1]
    named = image.ops.get(int(last[3]), "")
    return tuple(str(text) for text in last[4]) if not op or op.endswith(named) else ()


def _flying(launch: Launch) -> Flying:
    place = _place(launch.file, launch.line, launch.function, "marks") if launch.file else None
    return Flying(place, launch.op, launch.thread)


def _later(errors: Sequence[_Error], reported: Place | None) -> tuple[Place, ...]:
    places = dict.fromkeys(
        (frame[0], frame[1], frame[2]) for error in errors if error.users for frame in error.users[-1:]
    )
    return tuple(
        _place(file, line, name, "traceback")
        for file, line, name in places
        if reported is None or (file, line) != (reported.file, reported.line)
    )


def _kind_of_marks(image: RingImage) -> str:
    for event in image.events:
        if event[0] == "no_marks":
            return f"no marks: {event[3]}"
    if not any(event[0] == "armed" for event in image.events):
        return "no marks: the error came before the first of them"
    if any(event[0] == "armed" and event[3] for event in image.events):
        return "thinned lines"
    return "lines" if (image.records["kind"] == LINE).any() else "operators"


def _process(image: RingImage, first: _Error | None) -> str:
    rank = next((str(event[3]) for event in image.events if event[0] == "process"), "")
    parts = [f"rank {rank}"] if rank else []
    parts.append(f"process {image.pid}")
    if first is not None and first.thread != "MainThread":
        parts.append(f"thread {first.thread}")
    return ", ".join(parts)


def _others(images: Sequence[RingImage], guilty: RingImage, brackets: Sequence[Bracket]) -> tuple[str, ...]:
    texts = [
        f"{_process(image, None)} met an error too, later"
        for image in images
        if image is not guilty and _began_to_fail(image) < _NEVER
    ]
    for bracket in brackets[1:]:
        if bracket.pending and bracket.lines:
            file, line = bracket.lines[0]
            texts.append(
                f"stream {bracket.stream:#x} of device {bracket.device} was not finished either, at {file}:{line}"
            )
    return tuple(texts)


def _last_place(frames: Sequence[tuple[str, int, str]]) -> Place | None:
    """The innermost frame of a printed traceback that is the user's own; what `<string>` names only without another."""
    own = [frame for frame in frames if is_user_file(frame[0], []) and "/lib/python" not in frame[0]]
    written = [frame for frame in own if not frame[0].startswith("<")]
    return _place(*(written or own)[-1], "traceback") if own else None


def _place_of(frame: tuple[Any, ...], source: str) -> Place:
    return _place(frame[0], frame[1], frame[2], source)


def _place(file: str, line: int, function: str, source: str) -> Place:
    return Place(file, line, function, source=source, excerpt=linecache.getline(file, line).rstrip("\n"))


def kind_of(sighting: Sighting) -> str:
    """The class word of what a run met, "" for nothing."""
    if not sighting.reproduced:
        return ""
    if sighting.assertions:
        return "async.assert"
    return classify(sighting.error) or "async.other"
