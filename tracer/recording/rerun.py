"""Runs the program under marks, and a second time with launches blocking, and gives up in time.

The program keeps our stdin and stdout. Its stderr passes through us: what it says of
the device is read, and the thousand copies of one assertion are shown once.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from tracer.errors import RecordError
from tracer.recording.device_errors import Stderr
from tracer.recording.launch import end_with

BLOCKING = "CUDA_LAUNCH_BLOCKING"
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_GRACE_S = 5.0  # from the request to end to the kill
_LINES = re.compile(rb"(?<=[\n\r])")
_PAUSE_S = 0.2  # after so long a line that has no end is shown as it is
_DRAIN_S = 2.0  # for what a dead program's children still have to say


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one run ended."""

    status: int | None  # exit status, 128 + n for a signal; None: stopped at the limit
    seconds: float
    stderr: Stderr


def run_program(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str | None = None,
    *,
    limit_s: float | None = None,
    quiet: bool = False,
    stdout: int | None = None,
) -> Outcome:
    """Run to the end, or to the limit. `quiet` hides what the program prints: it was seen before.

    `stdout` takes what it prints, where ours is wanted for something else.
    """
    began = time.monotonic()
    watch = Stderr()
    try:
        program = subprocess.Popen(
            list(argv),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL if quiet else None,
            stdout=subprocess.DEVNULL if quiet else stdout,
            stderr=subprocess.PIPE,
            start_new_session=limit_s is not None,  # so that it can be ended with all its children
            preexec_fn=end_with(os.getpid()),
        )
    except OSError as error:
        raise RecordError(f"{argv[0]} could not be started", why=str(error)) from error
    assert program.stderr is not None
    reader = threading.Thread(target=_pass_on, args=(program.stderr, watch, quiet), daemon=True)
    reader.start()
    status: int | None
    try:
        with _passing_on(program):
            status = program.wait(limit_s)
    except subprocess.TimeoutExpired:
        _end(program)
        status = None
    except KeyboardInterrupt:
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(_GRACE_S)
        _end(program)
        raise
    reader.join(_DRAIN_S)
    if status is not None and status < 0:
        status = 128 - status
    return Outcome(status, time.monotonic() - began, watch)


@contextlib.contextmanager
def _passing_on(program: subprocess.Popen[bytes]) -> Iterator[None]:
    """Let the program have the signals that come for it; how it takes them is how we end."""
    before = {number: signal.signal(number, lambda number, frame: program.send_signal(number)) for number in _PASSED_ON}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _pass_on(stream: IO[bytes], watch: Stderr, quiet: bool) -> None:
    """Show what comes, line by line; a progress bar's lines end with a carriage return, and a question has no end."""
    out = None if quiet else getattr(sys.stderr, "buffer", None)
    rest, shown = b"", 0  # a line that has no end yet, and how much of it was shown
    # Where nobody reads our stderr any more, the program's is closed, too: it is to hear of it as it would alone.
    with stream, contextlib.suppress(BrokenPipeError):
        while True:
            if shown < len(rest) and not select.select([stream], [], [], _PAUSE_S)[0]:
                _write(rest[shown:], out)
                shown = len(rest)
            chunk = os.read(stream.fileno(), 1 << 16)
            *lines, rest = _LINES.split(rest + chunk)
            for line in lines if chunk else (rest,):
                if watch.feed(line.decode("utf-8", "replace")) or shown:
                    _write(line[shown:], out)
                shown = 0
            if not chunk:
                return


def _write(data: bytes, out: IO[bytes] | None) -> None:
    if out is not None:
        out.write(data)
        out.flush()


def _end(program: subprocess.Popen[bytes]) -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if program.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(program.pid) == program.pid:
                os.killpg(program.pid, sign)
            else:
                program.send_signal(sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(_GRACE_S)
