"""One window of one process: the profiler and all recorders on, off, and on disk.

Every step is written to the manifest at once, so that after a crash it says how far
the recording came. Errors of torch and of the disk end the recording, not the program.
"""

from __future__ import annotations

import os
import socket
import sys
from _thread import get_ident
from collections import deque
from pathlib import Path
from threading import get_native_id
from typing import Any

from tracer.recording import facts, runs
from tracer.recording.callers import write_callers
from tracer.recording.profiler import Profiler
from tracer.recording.realtime import monotonic, monotonic_ns, sleep
from tracer.recording.recorders import Recorders
from tracer.recording.rivals import Rivals, other_cupti_client
from tracer.recording.session import Session
from tracer.recording.store import write_json

READY = ".sampler-ready"
_SAMPLER_WAIT_S = 2.0
_MOST_STAMPS = 2000


class Capture:
    """The recording of one window."""

    def __init__(self, output: Path, run_folder: Path, run: runs.RunFile) -> None:
        self._run_folder = run_folder  # where the parent listens
        self._run = run
        rank = facts.rank()
        folder = output / f"rank{rank}-{_host()}-{os.getpid()}"
        self.session = Session(folder, run.record, rank=rank, run_id=run.run_id)
        self._steps = self.session.sink("steps")
        self._early: deque[list[Any]] = deque(maxlen=_MOST_STAMPS)  # steps before the window
        self._late = 0  # steps after it
        self.profiler: Profiler | None = None
        self.over = False  # the window has closed
        self.recorded = False  # there is something in it
        self._recorders = Recorders(self.session)
        self._warmed = self._opened = False
        self._thread = 0
        self.first = self._last = 0  # step numbers

    @property
    def open_now(self) -> bool:
        """Whether the window is open."""
        return self._opened and not self.over

    @staticmethod
    def wanted(run: runs.RunFile) -> bool:
        """Whether this rank is one of those to be recorded."""
        return run.record.ranks == "all" or facts.rank() in run.record.ranks

    def begin(self) -> None:
        """Make the folder, arm the recorders, start to flush."""
        session = self.session
        if session.folder.exists():  # of the program that this process ran before it called exec
            session.folder = session.folder.with_name(f"{session.folder.name}-{monotonic_ns()}")
        try:
            session.folder.mkdir(parents=True)
        except OSError as error:
            self.tell("note", text=f"nothing can be recorded: {error}")
        session.manifest.update(
            program=facts.program(self._run.kind),
            versions=facts.versions(),
            env=facts.clean_environment(dict(os.environ)),
            rank=session.rank,
            world_size=facts.world_size(),
            host=socket.gethostname(),
            pid=os.getpid(),
            devices=facts.devices(),
            window=None,
            steps_from="",
            threads=facts.threads(),
            kineto=None,
            py_spy=None,
            why="the program ended before the window opened",
        )
        self._recorders.arm()
        session.start()

    def tell(self, what: str, **fields: Any) -> None:
        """Tell the parent."""
        runs.tell(self._run_folder, what, folder=str(self.session.folder), **fields)

    def stamp(self, now: int, number: int, inside: bool = False) -> None:
        """A step begins. Before and after the window, the nearest ones are enough to know the program's pace."""
        row = ["step", now, number, get_native_id(), inside]
        if self.over:
            self._late += 1
            if self._late <= _MOST_STAMPS:
                self._steps.add(row)
        elif self._warmed:
            self._steps.add(row)
        else:
            self._early.append(row)

    def _write_early_steps(self) -> None:
        self._warmed = True
        while self._early:
            self._steps.add(self._early.popleft())

    # The window.

    def warm(self, number: int, source: str) -> None:
        """Get the sampler and the profiler ready."""
        self.stamp(monotonic_ns(), -1)  # breaks the row: steps that warm up tell nothing of the program's pace
        self._write_early_steps()
        manifest = self.session.manifest
        manifest["steps_from"] = source
        manifest["rank"] = self.session.rank = facts.rank()
        manifest["world_size"] = facts.world_size()
        manifest["warm_step"] = number
        name, fix = other_cupti_client()
        if name:
            self.session.note(f"{name} holds CUPTI in this process, so GPU work may be missing; {fix}")
            self.tell("note", text=f"{name} holds CUPTI in this process, so GPU work may be missing; {fix}")
        self.tell("warming")
        self._wait_for_sampler()
        import torch

        try:
            self.profiler = Profiler(self._run.record, cuda=torch.cuda.is_initialized())
            self.profiler.prepare()
        except (RuntimeError, AssertionError) as error:
            self._profiler_failed(error)

    def _profiler_failed(self, error: BaseException) -> None:
        self.profiler = None
        text = f"torch.profiler could not be started: {str(error).partition(chr(10))[0]}"
        self.session.note(text)
        self.tell("failed", text=text)

    def _wait_for_sampler(self) -> None:
        """A sampler takes part of a second to attach: give it that before the window, not inside."""
        if not self._run.parent or not self._run.record.samples:
            return
        until = monotonic() + _SAMPLER_WAIT_S
        ready = self.session.folder / READY
        while not ready.exists() and monotonic() < until:
            sleep(0.005)

    def open(self, number: int) -> None:
        """The window opens."""
        if self.profiler is not None:
            try:
                self.profiler.start()
                self.profiler.step(number)
            except (RuntimeError, AssertionError) as error:
                self._profiler_failed(error)
        self._open_recorders(number)

    def _open_recorders(self, number: int) -> None:
        self._write_early_steps()
        manifest = self.session.manifest
        self._thread = get_ident()
        self._recorders.open()
        self._opened = True
        self.first = self._last = number
        self.session.mark()
        manifest["window"] = {
            "start_mono_ns": monotonic_ns(),
            "end_mono_ns": None,
            "first_step": number,
            "last_step": None,
        }
        manifest["why"] = "the program ended inside the window, and too suddenly to write it"
        manifest["devices"] = facts.devices()
        manifest["threads"] = facts.threads()
        self.session.save()
        self.tell("open", number=number)
        manifest["window"]["start_mono_ns"] = monotonic_ns()  # what this took is not the program's

    def seen_by(self, source: str) -> None:
        """What tells of steps: not known before the first, if the window opened earlier."""
        if self.session.manifest["steps_from"] == "time":
            self.session.manifest["steps_from"] = source

    def step(self, number: int) -> None:
        """A step begins inside the window."""
        self._last = number
        if self.profiler is not None and get_ident() == self._thread:
            self.profiler.step(number)

    def close(self, number: int, why: str = "") -> None:
        """The window closes; `why` if before its time."""
        if not self._opened or self.over:
            return
        if self.profiler is not None and get_ident() == self._thread:
            self.profiler.end_step()
        self._close_recorders(number)
        if self.profiler is not None:
            self.profiler.stop()
            self._save_trace()
        self._write(why)

    def _close_recorders(self, number: int) -> None:
        manifest = self.session.manifest
        self.over = True
        end = monotonic_ns()
        manifest["window"].update(end_mono_ns=end, last_step=max(self._last, number - 1, self.first))
        known = {thread["ident"] for thread in manifest["threads"]}
        manifest["threads"] += [thread for thread in facts.threads() if thread["ident"] not in known]
        self._recorders.close()
        self.session.mark()

    def _save_trace(self) -> None:
        assert self.profiler is not None
        manifest = self.session.manifest
        self.tell("writing")
        self._write_callers()
        if self.profiler.failed:
            self.session.note(f"the profiler did not end well: {self.profiler.failed}")
        try:
            manifest["kineto"] = self.profiler.save(self.session.folder)
            self.recorded = True
        except (OSError, RuntimeError, AssertionError) as error:
            text = f"torch.profiler's trace could not be written: {str(error).partition(chr(10))[0]}"
            self.session.note(text)
            self.tell("failed", text=text)

    def _write_callers(self) -> None:
        """Lines from the profiler's stacks, where the interpreter itself tells none."""
        recorders = self.session.manifest["recorders"]
        record = self._run.record
        if record.stacks != "full" or not record.lines or recorders.get("lines", {}).get("on"):
            return
        assert self.profiler is not None
        try:
            tree = self.profiler.inner.kineto_results.experimental_event_tree()
            count = write_callers(self.session, tree, get_native_id())
        except (RuntimeError, AttributeError, TypeError) as error:
            self.session.note(f"no lines from the profiler's stacks: {error}")
            return
        recorders["lines"] = {"on": True, "saw": count, "dropped": 0, "how": "the profiler's stacks"}

    def _write(self, why: str) -> None:
        manifest = self.session.manifest
        failed = self.profiler is not None and self.profiler.failed
        reason = why or (f"the profiler did not end well: {failed}" if failed else "")
        if manifest["kineto"] is None and not reason:
            reason = next((note for note in manifest["notes"] if "torch.profiler" in note), "there is no trace")
        manifest["complete"] = not reason
        manifest["why"] = reason
        self._recorders.disarm()
        self.session.flush()
        self._keep_sources()
        self.session.save()
        self.tell("written", text=reason)

    # What else may happen.

    def open_theirs(self, number: int) -> None:
        """The program's own profiler runs: record beside it."""
        if not self._opened:
            self.session.note("the program's own torch.profiler was running: its trace was taken, ours stayed away")
            self._open_recorders(number)

    def close_theirs(self, number: int) -> None:
        """The program's own profiler has stopped."""
        if self._opened and not self.over:
            self._close_recorders(number)

    def adopt(self, rivals: Rivals) -> None:
        """Take over what the program's own profiler recorded."""
        manifest = self.session.manifest
        name = rivals.hand_over(self.session.folder)
        if not name:
            return
        manifest["kineto"] = name
        manifest["steps_from"] = manifest["steps_from"] or "profiler"
        if manifest["window"] is None:
            start, end, first, last = rivals.last
            manifest["window"] = {
                "start_mono_ns": start,
                "end_mono_ns": end,
                "first_step": first,
                "last_step": last,
            }
        self.session.note("this trace was recorded by the program's own torch.profiler, with its own settings")
        self.over = self.recorded = True
        self._write("")

    def cancel(self) -> None:
        """End a session that has only been warmed up."""
        if self.profiler is not None:
            try:
                self.profiler.cancel()
            except (RuntimeError, AssertionError) as error:
                self.session.note(f"the profiler's warm-up did not end well: {error}")
            self.profiler = None

    def end(self, why: str = "") -> None:
        """The process ends, or another window begins."""
        if why and not self.over:
            self.session.manifest["why"] = why
        if self.profiler is not None:
            self.profiler.stop()
        self._write_early_steps()
        self._recorders.disarm()
        if not self.over:
            self._keep_sources()
        self.session.end()

    def _keep_sources(self) -> None:
        try:
            write_json(self.session.folder / "sources.json", facts.sources(self.session))
        except OSError as error:
            self.session.note(f"the source files could not be kept: {error}")

    def forget(self) -> None:
        """This is a forked child: nothing here is its own."""
        if self.profiler is not None and "torch" in sys.modules:
            sys.modules["torch"].autograd._enable_record_function(False)
        self._recorders.forked()
        self.session.forget()


def _host() -> str:
    return "".join(c if c.isalnum() or c in ".-_" else "-" for c in socket.gethostname()) or "host"
