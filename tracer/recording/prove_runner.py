"""Starts the processes of `tracer prove`, one after the other, and reads what each found."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from tracer import config
from tracer.errors import UsageError
from tracer.recording.commandline import command_line
from tracer.recording.launch import end_with
from tracer.recording.prove_child import VARIABLE, Result, Task


@dataclass(frozen=True, slots=True)
class Plan:
    """Which steps of each run are measured."""

    skip: int
    steps: int
    whole: bool  # the program has none: all of it is one


class Runner:
    """Starts the program's processes."""

    def __init__(
        self,
        settings: config.Config,
        folder: Path | None = None,
        key: str = "CUDA",
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._settings = settings
        self._key = key
        self.say = say
        self._argv, self.name = command_line(settings.run, settings.base)
        if Path(self._argv[0]).name.startswith(("torchrun", "accelerate", "deepspeed")):
            raise UsageError(
                "prove runs programs of one process",
                why=f"{Path(self._argv[0]).name} starts others",
                fix="name the script itself: run.script",
            )
        self.folder = folder or Path(tempfile.mkdtemp(prefix=f"prove-{self.name}-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        window = settings.window
        self.asked = Plan(window.skip, window.steps or 20, whole=False)

    def values(self, name: str) -> Path:
        """Where a recording run leaves its values."""
        return self.folder / f"{name}.values"

    def plan_after(self, first: Result) -> Plan | None:
        """What to measure, now that it is known how often the program steps; None if too seldom."""
        asked = self.asked
        if first.steps == asked.steps:
            return asked
        if first.steps_seen == 0:
            return Plan(0, 1, whole=True)
        skip = min(asked.skip, first.steps_seen // 3)
        steps = first.steps_seen - skip - 1
        return Plan(skip, steps, whole=False) if steps >= 2 else None

    def run(self, mode: str, name: str, plan: Plan | None = None, *, check: bool = False) -> Result:
        """One process to its end, and what it found."""
        plan = plan or self.asked
        task = Task(
            mode=mode,
            folder=str(self.folder),
            name=name,
            parent=os.getpid(),
            skip=plan.skip,
            steps=plan.steps,
            step_from=self._settings.window.step_from,
            whole=plan.whole,
            check=check,
            key=self._key,
            values=str(self.values(name if mode == "record" else "record")),
        )
        file = self.folder / f"{name}.task.json"
        file.write_bytes(msgspec.json.encode(task))
        output = self.folder / f"{name}.out"
        with output.open("wb") as stream:
            if mode == "replay":
                stream.write(b"# tracer prove: in this run reads gave back the values of an earlier run\n")
                stream.flush()
            status = self._execute(stream, file, output)
        found = self.folder / f"{name}.json"
        result = msgspec.json.decode(found.read_bytes(), type=Result) if found.is_file() else Result()
        result.status = 128 - status if status < 0 else status
        result.output = str(output)
        result.why = _last_line(output)
        result.reached = found.is_file()
        if not result.reached and not result.status:
            result.why = self._unreached()
        return result

    def _unreached(self) -> str:
        """Why a process that ended well left no result."""
        told = self.folder / "unreached.txt"
        if told.is_file():
            last = told.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1]
            return f"the recorder could not start in it: {last}"
        return "it never imported torch, or ended without leaving Python the usual way (os._exit)"

    def _execute(self, stream: IO[bytes], task: Path, output: Path) -> int:
        run = self._settings.run
        environment = {**os.environ, **run.env}
        inject = str(Path(__file__).parent / "inject")
        path = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = inject + os.pathsep + path if path else inject
        environment[VARIABLE] = str(task)
        environment.setdefault("PYTHONHASHSEED", "0")
        environment.setdefault("KINETO_LOG_LEVEL", "6")  # or else it writes into the program's output
        environment.pop("TRACER_RUN", None)
        try:
            done = subprocess.run(
                self._argv,
                cwd=run.cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                timeout=run.timeout,
                check=False,
                preexec_fn=end_with(os.getpid()),
            )
        except subprocess.TimeoutExpired:
            with output.open("ab") as end:
                end.write(f"\nended after run.timeout = {run.timeout:g} s\n".encode())
            return 124
        except OSError as error:
            raise UsageError(f"{self._argv[0]} cannot be run", why=error.strerror or str(error)) from error
        return int(done.returncode)

    def pairs(
        self, rounds: int, one: Callable[[str], Result], other: Callable[[str], Result]
    ) -> tuple[list[Result], list[Result]] | str:
        """Both variants in turn, the order changing; or why that failed."""
        first: list[Result] = []
        second: list[Result] = []
        for number in range(rounds):
            self.say(f"round {number + 1} of {rounds}")
            todo = [(first, one, f"plain-{number}"), (second, other, f"other-{number}")]
            for found, call, name in todo if number % 2 == 0 else reversed(todo):
                result = call(name)
                if result.status or not result.steps:
                    return (
                        f"run {name} failed: {result.why}; if only replayed runs fail, the program relies on the wait"
                    )
                if result.missed or result.unused:
                    return other_reads(result)
                found.append(result)
        return first, second


def other_reads(result: Result) -> str:
    """Why a replayed run did not read what was recorded."""
    if result.missed:
        return f"the replayed run asked for values that the recorded one did not read, first at {result.missed[0]}"
    return f"the replayed run left {result.unused} recorded values unread: its control flow is another"


def _last_line(output: Path) -> str:
    lines = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "no output"
