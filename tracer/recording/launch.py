"""Runs the program as if it had been started by itself, and watches over its processes.

The program is a child of ours in our process group: it has our stdin, stdout and
stderr, the terminal's signals reach it directly, and ours are passed on. Recording
happens inside it (`child.py`), brought there by PYTHONPATH.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracer import config
from tracer.errors import UsageError
from tracer.recording import runs
from tracer.recording.capture import READY
from tracer.recording.commandline import command_line
from tracer.recording.finish import Outcome, close_manifests
from tracer.recording.unreached import find_isolated

_POLL_S = 0.02
_KILL_AFTER_S = 10.0  # what a program gets between SIGTERM and SIGKILL when its time is up
_LINGER_S = 2.0
_LOOK_S = 1.0
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def launch(settings: config.Config, progress: Callable[[runs.Event], None], sampler: Any) -> Outcome:
    """Run the program to its end and record it; how that went."""
    argv, name = command_line(settings.run, settings.base)
    cwd = settings.run.cwd
    if cwd is not None and not Path(cwd).is_dir():
        raise UsageError(f"there is no folder {cwd}", why="run.cwd names it")
    name = settings.output.name or name
    folder = runs.make_folder(Path(settings.output.folder), name)
    run = runs.RunFile(
        run_id=folder.name,
        name=name,
        argv=argv,
        kind=next(kind for kind in ("script", "module", "command") if getattr(settings.run, kind) is not None),
        window=settings.window,
        record=settings.record,
        parent=os.getpid(),
        progress=sys.stderr.isatty(),
        started_unix_ns=time.time_ns(),
    )
    try:
        runs.write_run(folder, run)
        ready = environment(settings, folder)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise runs.cannot_write(folder.parent, error) from error
    _call_prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        process = subprocess.Popen(argv, cwd=cwd, env=ready, preexec_fn=end_with(os.getpid()))
    except (OSError, ValueError) as error:  # ValueError: a null byte, or an `=` in the name of a variable
        shutil.rmtree(folder, ignore_errors=True)  # nothing has been recorded in it
        why = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise UsageError(f"{argv[0]} cannot be run", why=why) from error
    outcome = _Watch(process, folder, settings, progress, sampler).to_the_end()
    close_manifests(outcome.recordings, process.pid, outcome.status)
    try:
        runs.write_run(folder, _with_status(run, outcome.status))
    except OSError as error:
        outcome.notes.append(f"the recording is not whole: {error}")
    return outcome


def _with_status(run: runs.RunFile, status: int) -> runs.RunFile:
    import msgspec

    return msgspec.structs.replace(run, exit_status=status)


def environment(settings: config.Config, folder: Path) -> dict[str, str]:
    """The program's environment: its own, and the way to us."""
    found = {**os.environ, **settings.run.env}
    inject = str(Path(__file__).parent / "inject")
    path = found.get("PYTHONPATH")
    found["PYTHONPATH"] = inject + os.pathsep + path if path else inject
    found[runs.VARIABLE] = str(folder)
    return kineto_variables(folder) | found


def kineto_variables(folder: Path) -> dict[str, str]:
    """Kineto stops at 128 MB of GPU records: allow a quarter of the memory, which it takes only if need be."""
    system = Path("/etc/libkineto.conf")
    before = system.read_text(encoding="utf-8", errors="replace") if system.is_file() else ""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    most = max(128, min(4096, memory // 4))
    path = folder / "kineto.conf"
    path.write_text(f"{before}\nACTIVITIES_MAX_GPU_BUFFER_SIZE_MB={most}\n", encoding="utf-8")
    return {"KINETO_CONFIG": str(path), "KINETO_LOG_LEVEL": "6"}  # at a lower level it writes on the program's stderr


def _call_prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def end_with(parent: int) -> Callable[[], None]:
    """To be called in the new process: when we are killed it is asked to end, rather than left behind."""
    prctl, get_parent = ctypes.CDLL(None).prctl, os.getppid  # found before the fork: after it, nothing may be loaded

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if get_parent() != parent:
            os.kill(os.getpid(), signal.SIGTERM)

    return ask


class _Watch:
    """Watches over a running program."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        folder: Path,
        settings: config.Config,
        progress: Callable[[runs.Event], None],
        sampler: Any,
    ) -> None:
        self._process = process
        self._folder = folder
        self._settings = settings
        self._progress = progress
        self._sampler = sampler
        self._listener = runs.Listener(folder)
        self._outcome = Outcome(folder, 0)
        self._pids: list[int] = []  # processes that record
        self._sampled: set[str] = set()  # folders of those whose window is open
        self._timed_out = False
        self._looked = 0.0

    def to_the_end(self) -> Outcome:
        """Wait for the program, passing signals on."""
        handlers = {number: signal.signal(number, self._pass_on) for number in _PASSED_ON}
        try:
            self._wait()
        finally:
            self._sampling("stop")
            for number, handler in handlers.items():
                signal.signal(number, handler)
        status = self._process.returncode
        outcome = self._outcome
        outcome.status = 128 - status if status < 0 else status
        self._clear_away(abnormal=status < 0 or self._timed_out)
        self._hear()
        outcome.timed_out = self._timed_out
        if self._timed_out:
            outcome.notes.append(f"the program was ended after run.timeout = {self._settings.run.timeout:g} s")
        return outcome

    def _wait(self) -> None:
        timeout = self._settings.run.timeout
        ends = time.monotonic() + timeout if timeout else None
        while True:
            try:
                self._process.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                self._hear()
                self._look_around()
                if ends is not None and time.monotonic() > ends:
                    if self._timed_out:
                        self._process.kill()
                    else:
                        self._timed_out = True
                        ends = time.monotonic() + _KILL_AFTER_S
                        self._process.terminate()
                continue
            return

    def _pass_on(self, number: int, frame: Any) -> None:
        if number == signal.SIGINT and _terminal_sends_it():
            return
        asked = self._settings.window.signal
        if asked and number == signal.Signals[asked] and self._pids:
            for pid in self._pids:
                _send(pid, number)
            return
        self._process.send_signal(number)

    def _hear(self) -> None:
        for event in self._listener.news():
            folder = Path(event.folder) if event.folder else None
            if event.what == "armed" and folder is not None:
                self._pids.append(event.pid)
                self._outcome.recordings.append(folder)
                if folder.parent not in self._outcome.folders:
                    self._outcome.folders.append(folder.parent)
            elif event.what == "warming" and folder is not None:
                self._sampled.add(event.folder)
                self._sampling("start", event.pid, folder)
            elif event.what in ("writing", "written"):
                self._sampled.discard(event.folder)
                if not self._sampled:  # ranks close their windows together
                    self._sampling("stop")
            elif event.what == "failed":
                self._outcome.failed = event.text
            elif event.what == "note":
                self._outcome.notes.append(event.text)
            self._progress(event)

    def _look_around(self) -> None:
        """Now and then: is there a Python of this run that cannot be reached?"""
        if time.monotonic() - self._looked > _LOOK_S:
            self._looked = time.monotonic()
            for words in find_isolated(self._folder):
                note = f"not recorded, since -I, -E or -S keeps the recorder out: {words[:200]}"
                if note not in self._outcome.notes:
                    self._outcome.notes.append(note)

    def _sampling(self, what: str, pid: int = 0, folder: Path | None = None) -> None:
        """Start or stop py-spy beside the program, and tell the program when it is there."""
        if self._sampler is not None and self._settings.record.samples:
            if what == "start":
                why = self._sampler.start(pid, folder, self._settings.record)
                if why and why not in self._outcome.notes:
                    self._outcome.notes.append(why)
            else:
                self._sampler.stop()
        if folder is not None:
            try:
                (folder / READY).touch()
            except OSError:
                return

    def _clear_away(self, abnormal: bool) -> None:
        """Let what the program left behind end by itself, or end it if the program was killed."""
        until = time.monotonic() + _LINGER_S
        while (left := _children()) and time.monotonic() < until:
            time.sleep(_POLL_S)
        if not left or not abnormal:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in _children():
                _send(pid, number)
            until = time.monotonic() + 2 * _LINGER_S
            while _children() and time.monotonic() < until:
                time.sleep(_POLL_S)


def _terminal_sends_it() -> bool:
    """Whether Ctrl-C goes to the program by itself: it is in the terminal's foreground group, as we are."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _children() -> list[int]:
    """Our child processes that still run; those that have ended are reaped."""
    own, found = os.getpid(), []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[1]) != own:
            continue
        if fields[0] == b"Z":
            try:
                os.waitpid(int(entry.name), os.WNOHANG)
            except ChildProcessError:
                continue
        else:
            found.append(int(entry.name))
    return found
