"""Runs and records programs: `python -m tracer run`, and from inside a program `tracer.record` and `tracer.step`.

Nothing here imports torch before something is recorded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from tracer.recording.child import Child

__all__ = ["record", "step"]

_current: list[Child] = []  # the recorder of this process, if one is at work


def step() -> None:
    """A step of the program begins here; does nothing where nothing is recorded."""
    if _current:
        _current[-1].boundary("tracer")


class record:
    """Record part of this process, and audit it at the end of the block.

        with tracer.record("training", steps=20) as recording:
            for batch in loader:
                train(batch)
                recording.step()

    Steps are also seen by themselves, as in `tracer run`. Without `steps` and `seconds`
    the whole block is recorded. A schedule of torch.profiler says it all at once:
    `schedule=torch.profiler.schedule(wait=1, warmup=1, active=3)`; then, as there, the
    first step begins with the block and `recording.step()` ends each one. Further keywords
    are the keys of `record` in a config, for example `stacks="full"` or `ranks="all"`.
    """

    def __init__(
        self,
        name: str = "recording",
        *,
        steps: int | None = None,
        seconds: float | None = None,
        skip: int = 0,
        warmup: int = 1,
        schedule: Callable[[int], Any] | None = None,
        folder: str | os.PathLike[str] = "traces",
        formats: tuple[str, ...] = ("terminal", "json", "perfetto"),
        **what: Any,
    ) -> None:
        from tracer import config

        self.folder: Path | None = None  # of the run, once recording has begun
        self._name = name
        self._output = Path(folder)
        self._formats = formats
        window = {"steps": steps, "seconds": seconds, "skip": skip, "warmup": warmup}
        if schedule is not None:
            from tracer.recording.schedules import window_of

            window |= window_of(schedule)
        settings = config.parse_arguments({"window": window, "record": what})
        self._window, self._record = settings.window, settings.record
        self._child: Child | None = None
        self._set: dict[str, str] = {}  # environment variables of the block

    def __enter__(self) -> Self:
        if not _current:  # under `tracer run` this process is recorded already
            self._begin()
        return self

    def _begin(self) -> None:
        from tracer.recording import runs
        from tracer.recording.child import Child
        from tracer.recording.launch import kineto_variables

        self.folder = runs.make_folder(self._output, self._name)
        self._set = {name: value for name, value in kineto_variables(self.folder).items() if name not in os.environ}
        os.environ.update(self._set)
        run = runs.RunFile(
            run_id=self.folder.name,
            name=self._name,
            argv=[],
            kind="library",
            window=self._window,
            record=self._record,
            parent=0,
            started_unix_ns=time.time_ns(),
        )
        runs.write_run(self.folder, run)
        self._child = Child(self.folder, run)
        self._child.watch(at_once=True)

    def step(self) -> None:
        """A step begins here."""
        step()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        child, self._child = self._child, None
        if child is None or self.folder is None:
            return
        child.finish(f"{kind.__name__} was raised" if kind is not None else "")
        for name in self._set:
            os.environ.pop(name, None)
        if self._formats and any(self.folder.glob("rank*/kineto.json.gz")):
            self._report(self.folder)

    def _report(self, folder: Path) -> None:
        """Audit in a process of its own: this one keeps its memory, and its torch."""
        import subprocess
        import sys

        home = str(Path(__file__).parents[2])
        code = (
            "import sys; sys.path.insert(0, sys.argv[1]); from tracer.commands.run import report; report(*sys.argv[2:])"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, home, str(folder), *self._formats], capture_output=True, text=True, check=False
        )
        print(done.stdout, end="")
        if done.returncode:
            print(f"tracer: {folder} could not be audited: {done.stderr.strip()}", file=sys.stderr)
