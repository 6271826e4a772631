"""In the program's own process: waits for CUDA or a step, records the window, and leaves no trace of itself.

`watch` is called once torch is imported. Until the first CUDA call or step nothing is
written and no thread runs. Whatever goes wrong here is noted in the manifest; the
program never sees it.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import signal
import sys
import traceback
from _thread import RLock, get_ident, start_new_thread
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracer import recording
from tracer.recording import runs
from tracer.recording.begin import goes_by_time, is_helper, may_have_gpu, when_cuda_is_up
from tracer.recording.capture import Capture
from tracer.recording.exits import Exits, on_main_thread, undisturbed
from tracer.recording.realtime import monotonic_ns, sleep
from tracer.recording.steps import RANKS, StepHooks
from tracer.recording.stopping import Stopping
from tracer.recording.truce import Truce
from tracer.recording.window import WHOLE_PROGRAM_S, Phase, Plan

_NO_STEP_S = 30.0  # after so long without any step, a window of seconds is recorded instead


def _guarded(method: Callable[..., None]) -> Callable[..., None]:
    """A way in from the program: our own bugs end the recording, and not the program."""

    @functools.wraps(method)
    def call(self: Child, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception:  # whatever it is, the program goes on
            self.give_up(traceback.format_exc())

    return call


class Child:
    """The recorder of one process of a run."""

    def __init__(self, folder: Path, run: runs.RunFile) -> None:
        self.number = 0  # of the step in which the program is
        self._folder = folder
        self._run = run
        self._plan = Plan(run.window)
        self._lock = RLock()
        self._inside = 0  # the thread that is at work in here: what it marks itself is not a step
        self._alive = True
        self._armed_ns = 0
        self._source = ""
        self._stopping = Stopping(folder, self._plan)
        self._capture: Capture | None = None
        self._hooks: StepHooks | None = None
        self._truce: Truce | None = None
        self._exits: Exits | None = None

    # Before anything happens.

    def watch(self, *, at_once: bool = False) -> None:
        """Hook into torch and wait; or begin at once, where the program asked for it."""
        import torch

        recording._current.append(self)
        self._hooks = StepHooks(self._run.window.step_from, self.boundary)
        self._truce = Truce(self._plan, self._locked)
        if at_once or torch.cuda.is_initialized():
            self.arm()
        elif may_have_gpu():
            when_cuda_is_up(self._cuda_is_up)
        elif goes_by_time(self._run) and not is_helper(sys.orig_argv):
            self.arm()

    @_guarded
    def _cuda_is_up(self) -> None:
        self.arm()

    def arm(self) -> None:
        """The program uses CUDA, or steps: from now on this process is recorded."""
        with self._lock:
            if self._armed_ns or not self._alive:
                return
            self._armed_ns = monotonic_ns()
            outer, self._inside = self._inside, get_ident()
            try:
                self._arm()
            finally:
                self._inside = outer

    def _arm(self) -> None:
        plan = self._plan
        if not plan.by_time and goes_by_time(self._run):
            plan.whole_program(math.inf if self._run.kind == "library" else WHOLE_PROGRAM_S)
        if not Capture.wanted(self._run):
            if not plan.window.stop_after:
                self._unhook()
            return
        self._exits = Exits(self.finish)
        if plan.window.signal and on_main_thread():
            signal.signal(signal.Signals[plan.window.signal], lambda number, frame: self._ask())
        self._capture = self._new_capture()
        if plan.by_time and plan.window.signal is None:
            if plan.skip_seconds:
                start_new_thread(self._later, (plan.skip_seconds, self._ask))
            else:
                plan.ask()
        self._advance(self._armed_ns)

    def _new_capture(self) -> Capture:
        folder = self._folder
        if self._plan.opened:
            folder = folder.with_name(f"{folder.name}-w{self._plan.opened + 1}")
        capture = Capture(folder, self._folder, self._run)
        capture.session.each_second(self._each_second)
        capture.begin()
        capture.tell("armed", number=0, of=self._plan.waits_for or 0)
        return capture

    # At each boundary.

    @_guarded
    def boundary(self, source: str) -> None:
        """A step may begin here, says `source`."""
        now = monotonic_ns()
        if not self._alive or self._inside == get_ident() or RANKS[source] < RANKS.get(self._source, 0):
            return
        with self._lock:
            self.arm()
            better = source != self._source and self._source != ""
            if not self._alive or (better and self._plan.phase is not Phase.WAITING):
                return
            self._source = source
            if better:  # the same step once more, from a better source
                return
            self._inside = get_ident()
            try:
                self.number += 1
                self._advance(now)
            finally:
                self._inside = 0
        self._stopping.if_due(self.number, self._capture is not None, self.finish)

    def _advance(self, now: int) -> None:
        """Go on to the phase that begins here."""
        plan, capture = self._plan, self._capture
        if capture is None:
            plan.at(self.number)
            return
        if self._truce is not None:
            self._truce.number, self._truce.capture = self.number, capture
        if plan.phase is Phase.WAITING and plan.due(self.number) and self._stands_back(capture):
            capture.stamp(now, self.number, capture.open_now)
            return
        before = plan.phase
        a_step = not plan.by_time or self.number - capture.first > 1  # one that began in the window and ended there
        if before in (Phase.WARMING, Phase.OPEN) and self._source and a_step:
            capture.seen_by(self._source)
        if before is Phase.WAITING and plan.due(self.number) and capture.over:
            capture.end()
            capture = self._capture = self._new_capture()
            if self._truce is not None:
                self._truce.capture = capture
        after = plan.at(self.number)
        opens = after is Phase.OPEN and before is not Phase.OPEN
        if before is not Phase.WARMING:
            capture.stamp(now, self.number, after is before is Phase.OPEN)
        if before is Phase.OPEN and after is not Phase.OPEN:
            with undisturbed():
                capture.close(self.number)
            self._stopping.closed(self.number)
            capture.stamp(monotonic_ns(), self.number)  # writing took its time, and is no step
        elif before is Phase.WAITING and after is not Phase.WAITING:
            with undisturbed():
                capture.warm(self.number, self._source or "time")
            self._stopping.announce()
        if opens:
            self._open(capture)
            capture.stamp(monotonic_ns(), self.number, True)  # opening took its time, and is no step
        elif after is Phase.OPEN:
            capture.step(self.number)

    def _stands_back(self, capture: Capture) -> bool:
        if self._truce is None:
            return False
        return self._truce.stands_back(capture)

    @_guarded
    def _locked(self, call: Callable[[], None]) -> None:
        """For what happens between boundaries."""
        with self._lock:
            if self._alive:
                call()

    def _open(self, capture: Capture) -> None:
        capture.open(self.number)
        if self._plan.seconds is not None and math.isfinite(self._plan.seconds):
            start_new_thread(self._later, (self._plan.seconds, self._time_is_up))

    # Windows of seconds, and windows on demand.

    @_guarded
    def _later(self, seconds: float, call: Any) -> None:
        sleep(seconds)
        if self._alive:
            call()

    def _ask(self) -> None:
        """Open a window: at the next boundary, or now if the program does not step."""
        self._plan.ask()
        if self._plan.by_time:
            start_new_thread(self._open_now, ())

    @_guarded
    def _open_now(self) -> None:
        with self._lock:
            if self._alive and self._plan.asked:
                self._inside = get_ident()
                try:
                    self._advance(monotonic_ns())
                finally:
                    self._inside = 0

    @_guarded
    def _time_is_up(self) -> None:
        with self._lock:
            capture = self._capture
            if not self._alive or capture is None or self._plan.phase is not Phase.OPEN:
                return
            self._inside = get_ident()
            try:
                self._plan.close(self.number)
                capture.close(self.number)
                self._stopping.closed(self.number)
            finally:
                self._inside = 0
        if self.number == 0:
            self._stopping.without_steps()

    @_guarded
    def _each_second(self) -> None:
        """On the flushing thread: say how far the program is, and give up on steps that do not come."""
        capture, plan = self._capture, self._plan
        if capture is None or not self._alive or plan.phase is not Phase.WAITING:
            return
        if plan.waits_for is not None and self._run.progress:
            capture.tell("waiting", number=self.number, of=plan.waits_for)
        patient = monotonic_ns() - self._armed_ns < _NO_STEP_S * 1e9
        if self.number or patient or plan.by_time or plan.window.signal or self._run.kind == "library":
            return
        if plan.window.step_from == "auto":
            capture.session.note(f"no step was seen in {_NO_STEP_S:.0f} s: recorded by time instead")
            plan.whole_program(WHOLE_PROGRAM_S)
            self._ask()

    # The end.

    @_guarded
    def finish(self, why: str = "") -> None:
        """Write what there is: the process ends."""
        with self._lock:
            if not self._alive:
                return
            self._alive = False
            self._inside = get_ident()
            capture = self._capture
            if capture is not None:
                with undisturbed():
                    self._finish(capture, why)
            self._unhook()

    def _finish(self, capture: Capture, why: str) -> None:
        plan = self._plan
        if plan.phase is Phase.OPEN:
            whole = plan.window.seconds is None and plan.by_time and not why
            done = "before its time" if plan.by_time else f"after {self.number - capture.first} of {plan.steps} steps"
            short = f"the window was cut short {done}: {why or 'the program ended'}"
            capture.close(self.number, "" if whole else short)
        elif plan.phase is Phase.WARMING:
            capture.cancel()
        if self._truce is not None:
            self._truce.adopt(capture)
        capture.end("" if capture.over else self._never_opened(why))

    def _never_opened(self, why: str) -> str:
        plan = self._plan
        ended = f"the program ended at step {self.number}{f' ({why})' if why else ''}"
        if plan.window.signal:
            return f"the window never opened: no {plan.window.signal} came, and {ended}"
        if plan.phase is Phase.WARMING:
            return f"the window never opened: it was being warmed up when {ended}"
        if plan.by_time:
            lasted = (monotonic_ns() - self._armed_ns) / 1e9
            ended = f"the program ended after {lasted:.1f} s{f' ({why})' if why else ''}"
            return f"the window never opened: it begins after {plan.skip_seconds:g} s, and {ended}"
        if self.number == 0 and plan.window.step_from != "auto":
            return f"the window never opened: nothing that window.step_from={plan.window.step_from} waits for ever came"
        begins = f"it begins at step {plan.waits_for}" if plan.waits_for is not None else "it begins later"
        return f"the window never opened: {begins}, and {ended}"

    def give_up(self, why: str) -> None:
        """Something of ours failed: leave the program alone, and say what it was."""
        with contextlib.suppress(Exception):  # the program comes first
            self._unhook()
            with (self._folder / "unreached.txt").open("a", encoding="utf-8", errors="replace") as file:
                file.write(f"{os.getpid()}: {why}\n")
            if self._capture is not None:
                self._capture.end(f"the recorder failed: {why.strip().splitlines()[-1]}")

    def _unhook(self) -> None:
        self._alive = False
        if self in recording._current:
            recording._current.remove(self)
        for hooks in (self._hooks, self._truce, self._exits):
            if hooks is not None:
                hooks.remove()

    def forked(self) -> None:
        """This is a forked child: it is left alone."""
        self._lock = RLock()
        if self._capture is not None:
            self._capture.forget()
        if self._truce is not None:
            self._truce.forget()
        self._unhook()


def _after_fork() -> None:
    for child in tuple(recording._current):
        child.forked()


os.register_at_fork(after_in_child=_after_fork)


def start(folder: str) -> None:
    """Called by the injected sitecustomize when torch has been imported."""
    path = Path(folder)
    Child(path, runs.read_run(path)).watch()
