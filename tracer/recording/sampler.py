"""py-spy beside the program, started by its parent: so Yama's restriction is met without help from the program.

Non-blocking by default (a pausing sampler froze programs with many threads), idle
threads included (a blocked wait is idle), and behind the program when both want a
core. What it cannot do it says in a file that the program's own recorder reads.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tracer import config
from tracer.recording.store import write_json

STATE = ".sampler.json"
OUTPUT = "samples.json"
_ATTACH_S = 1.5
_WRITE_S = 10.0
_MANY_THREADS = 100
_ALLOW = (
    "allow it with the capability SYS_PTRACE (docker run --cap-add SYS_PTRACE; in Kubernetes securityContext."
    "capabilities.add) or sysctl kernel.yama.ptrace_scope=0"
)


class Sampler:
    """One py-spy on one process."""

    def __init__(self, pid: int, folder: Path, record: config.Record) -> None:
        self._folder = folder
        self._state: dict[str, Any] = {"on": False, "why": "", "rate": record.sample_rate}
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        path = find_py_spy()
        if path is None:
            self._state["why"] = "py-spy is not installed (pip install py-spy)"
        else:
            self._attach(path, pid, record)
        self._save()

    @property
    def why(self) -> str:
        """Why there are no samples of py-spy; "" while it samples."""
        return str(self._state["why"])

    def _attach(self, path: str, pid: int, record: config.Record) -> None:
        command = [path, "record", "--pid", str(pid), "--format", "chrometrace", "--output"]
        command += [str(self._folder / OUTPUT), "--rate", str(record.sample_rate), "--idle", "--full-filenames"]
        threads = _threads_of(pid)
        if not record.sample_blocking or threads > _MANY_THREADS:
            command.append("--nonblocking")
            if record.sample_blocking:
                self._state["note"] = f"not pausing the program as asked: it has {threads} threads"
        command += ["--native"] if record.sample_native else []
        command += ["--subprocesses"] if record.subprocesses else []
        nice = shutil.which("nice")
        if nice and not record.sample_blocking:
            command = [nice, "-n", "19", *command]
        try:
            # A group of its own, so that Ctrl-C does not reach it, but no session of its own: the kernel shares
            # cores among sessions first, and being nice would count for nothing against the program's.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT, process_group=0
            )
        except OSError as error:
            self._state["why"] = f"py-spy does not start: {error}"
            return
        until = time.monotonic() + _ATTACH_S
        while self._process.poll() is None and b"Press Control-C" not in self._said() and time.monotonic() < until:
            time.sleep(0.01)
        if self._process.poll() is not None:
            self._state["why"] = self._explain()
            self._process = None
        else:
            self._state["on"] = True

    def _said(self) -> bytes:
        self._log.seek(0)
        return self._log.read()

    def _explain(self) -> str:
        said = self._said().decode(errors="replace")
        if re.search(r"permission denied|operation not permitted|SYS_PTRACE|os error (1|13)\b", said, re.IGNORECASE):
            return f"py-spy may not look into the program: {_ALLOW}"
        first = next((line.strip() for line in said.splitlines() if line.strip()), "no reason given")
        return f"py-spy stopped at once: {first}"

    def stop(self) -> None:
        """Let it write its samples; it is ended if it does not come to an end."""
        process, self._process = self._process, None
        if process is None:
            self._log.close()
            return
        died = process.poll() is not None
        if not died:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(_WRITE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self._state["why"] = "py-spy did not end and was killed: its samples are lost"
        found = re.search(rb"Samples: (\d+) Errors: (\d+)", self._said())
        if found:
            self._state |= {"saw": int(found[1]), "dropped": int(found[2])}
        elif not self._state["why"] and not (self._folder / OUTPUT).exists():
            self._state["why"] = "py-spy ended without samples: " + self._explain()
        if died and not found:
            self._state["why"] = self._state["why"] or "py-spy ended before the window did"
        self._state["ended"] = True
        self._save()
        self._log.close()

    def _save(self) -> None:
        try:
            write_json(self._folder / STATE, self._state)
        except OSError:
            return  # a full disk: the recorder inside takes over


def find_py_spy() -> str | None:
    """py-spy on the PATH, or of this environment."""
    beside = Path(sys.executable).with_name("py-spy")
    return shutil.which("py-spy") or (str(beside) if beside.exists() else None)


def _threads_of(pid: int) -> int:
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return 1


_running: list[Sampler] = []


def start(pid: int, folder: Path, record: config.Record) -> str:
    """Sample a process from now on; "" or why that is not possible."""
    sampler = Sampler(pid, folder, record)
    _running.append(sampler)
    return sampler.why


def stop() -> None:
    """Stop all samplers that run."""
    while _running:
        _running.pop().stop()
