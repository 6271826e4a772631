"""Where did the CUDA error come from? One run under marks, a second with launches blocking, one answer.

- `locate_program` is behind the command: it runs the program and never harms it.
- `locate` is the same for a block of code or a test: marks only, no second run.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tracer.recording.advice import advise
from tracer.recording.device_errors import KINDS
from tracer.recording.locate_child import VARIABLE, Settings
from tracer.recording.rerun import BLOCKING, run_program
from tracer.recording.sighting import kind_of, sight, sight_own
from tracer.results import SCHEMA, Located, Place, Sighting

_NOT_ASYNC = ("launch.resources", "memory.full")  # reported by the very call that failed
UNLOCALISED = "async.unlocalised"


@dataclass(frozen=True, slots=True)
class Options:
    """How to look for it."""

    every_ns: int = 0  # 0: a mark for each line
    lines: bool = True
    ops: bool = True
    rerun: bool = True
    limit_s: float | None = None  # of the second run; None: ten times the first, at least two minutes
    timeout_s: float | None = None  # of the first run
    user_code: tuple[str, ...] = ()
    stdout: int | None = None  # file descriptor for what the program prints; None: ours


def locate_program(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str | None = None,
    options: Options | None = None,
    tell: Callable[[str], object] = lambda text: None,
) -> Located:
    """Run a program until its CUDA error is found. `tell` hears what happens next."""
    options = options or Options()
    notes = []
    if env.get(BLOCKING) == "1":
        notes.append(
            f"{BLOCKING}=1 was set and is taken away for the first run: it is for debugging, never for production"
        )
    plain = {name: value for name, value in env.items() if name != BLOCKING}
    first = _run(argv, plain, cwd, options, blocking=False)
    kind = kind_of(first)
    second = None
    if kind and kind not in _NOT_ASYNC and options.rerun:
        limit = options.limit_s or max(120.0, 10 * first.seconds)
        tell(f"{first.error or KINDS[kind]}; now once more with launches blocking, for at most {limit:.0f} s")
        second = _run(argv, {**plain, BLOCKING: "1"}, cwd, options, blocking=True, limit_s=limit)
    return conclude(shlex.join(argv), first, second, notes)


def _run(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str | None,
    options: Options,
    *,
    blocking: bool,
    limit_s: float | None = None,
) -> Sighting:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="tracer-locate-", dir=memory) as name:
        folder = Path(name)
        settings = Settings(
            name,
            every_ns=0 if blocking else options.every_ns,
            lines=options.lines,
            ops=options.ops or blocking,
            check=blocking,
            user_code=list(options.user_code),
        )
        inject = str(Path(__file__).parent / "inject")
        path = env.get("PYTHONPATH")
        ready = {
            **env,
            VARIABLE: msgspec.json.encode(settings).decode(),
            "PYTHONPATH": inject + os.pathsep + path if path else inject,
        }
        outcome = run_program(
            argv, ready, cwd, limit_s=limit_s or options.timeout_s, quiet=blocking, stdout=options.stdout
        )
        return sight(folder, outcome, blocking=blocking)


def conclude(command: str, first: Sighting, second: Sighting | None, notes: Sequence[str] = ()) -> Located:
    """Put both runs together. Where they differ, the blocking run is right: there the host cannot run ahead."""
    kind = kind_of(first)
    texts = list(notes)
    best = second if second is not None and second.reproduced else first
    cause: Place | None
    if best is second and second.reported is not None:
        cause, source, confidence = second.reported, "blocking run", "high"
        if first.bracket and _same(first.bracket[0], cause) and len(first.bracket) == 1:
            source = "both"
        elif first.bracket and not any(_same(place, cause) for place in first.bracket):
            texts.append(f"the marks of the first run pointed at {_where(first.bracket[0])} instead")
    elif kind in _NOT_ASYNC:
        cause, source, confidence = first.reported, "traceback", "high"
    elif first.bracket:
        cause, source = first.bracket[0], "marks"
        confidence = "high" if len(first.bracket) == 1 else "medium"
        if len(first.bracket) > 1:
            texts.append(f"it is one of {len(first.bracket)} lines: {', '.join(map(_where, first.bracket))}")
    else:
        cause, source, confidence = first.reported, "traceback", "low" if first.reported else ""
    if second is not None and not second.reproduced and second.status is None:
        texts.append(
            f"the second run was stopped at its time limit ({second.seconds:.0f} s): programs of several processes can "
            "hang when launches block; what stands here is what the first run knew"
        )
    elif second is not None and not second.reproduced:
        kind = UNLOCALISED
        confidence = "low" if cause else ""
        texts.append(
            f"not reproduced with launches blocking (that run ended with status {second.status}): a race, or an input "
            "that differs from run to run; what stands here is the launch that failed in the first run, in a race "
            "not always the cause"
        )
    if first.later:
        texts.append(
            f"the context was dead from then on: {', '.join(map(_where, first.later))} failed as a consequence"
        )
    if not first.bracket and kind and kind not in _NOT_ASYNC and first.marks_from:
        texts.append(first.marks_from)
    texts.extend(first.others)
    if kind and cause is not None:
        texts.extend(_limits(cause, best.forward or first.forward, first.assertions))
    return Located(
        SCHEMA,
        command,
        first.status if first.status is not None else 124,
        kind,
        KINDS.get(kind_of(first), ""),
        cause if kind else None,
        source if kind else "",
        confidence if kind else "",
        best.times if best.times is not None else first.times,
        best.op or first.op,
        best.offending,
        best.callers or first.callers,
        best.forward or first.forward,
        first,
        second,
        advise(kind_of(first), best, command, reproduced=kind != UNLOCALISED),
        tuple(texts),
    )


def _limits(cause: Place, forward: Place | None, assertions: Sequence[str]) -> Iterator[str]:
    if ".backward(" in cause.excerpt and forward is None:
        yield "autograd launched it: the line is that of .backward(); watching operators names the forward, too"
    if ".replay(" in cause.excerpt:
        yield "it is inside a CUDA graph, whose launches cannot be marked: run the captured part eagerly for its line"
    if any(re.search(r"\.py:\d+: ", text) for text in assertions):
        yield "the kernel was generated by torch.compile: TORCH_COMPILE_DISABLE=1 gives the line inside the function"


def _same(one: Place, other: Place) -> bool:
    return (one.file, one.line) == (other.file, other.line)


def _where(place: Place) -> str:
    return f"{place.file}:{place.line}"


@contextmanager
def locate(*, ops: bool = True, check: bool = False) -> Iterator[None]:
    """Name the guilty line of a CUDA error that comes up in this block, in a note on the exception.

    With `check`, index operators have their inputs looked at before they run: slow,
    but the offending values are named too. Waits for the GPU at the end of the block.
    """
    import torch

    if not torch.cuda.is_available():
        yield
        return
    from tracer.recording.locate_child import Hooks

    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="tracer-locate-", dir=memory))
    hooks = Hooks(Settings(str(folder), ops=ops, check=check))
    try:
        hooks.install()
        try:
            yield
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
        except Exception as error:
            hooks.marks.errors.note(error)
            found = sight_own(folder, error)
            if found is not None:
                error.add_note(_note(conclude(shlex.join(sys.argv), found, None)))
            raise
        finally:
            hooks.remove()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _note(located: Located) -> str:
    """The answer in a line or two, for a traceback."""
    if located.cause is None:
        return "tracer: the guilty line was not found"
    parts = [f"tracer: launched at {_where(located.cause)}: {located.cause.excerpt.strip()}"]
    parts += [f"  op: {located.op}"] if located.op else []
    parts += [f"  {text}" for text in (*located.offending, *located.notes)]
    return "\n".join(parts)
