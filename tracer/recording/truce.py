"""What becomes of our window where the program uses torch.profiler itself.

Theirs begins inside our window: ours ends before. Theirs is there, or waits for its
turn, when ours would begin: ours stays away, the other recorders record beside it,
and its trace is taken over at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracer.recording.capture import Capture
from tracer.recording.rivals import Rivals
from tracer.recording.window import Phase, Plan

Guard = Callable[[Callable[[], None]], None]  # makes a call, under the child's lock, unless the recording is over


class Truce:
    """The terms between the program's profilers and ours, in one process."""

    def __init__(self, plan: Plan, guard: Guard) -> None:
        self.number = 0  # of the step in which the program is
        self.capture: Capture | None = None
        self._plan = plan
        self._guard = guard
        self._rivals = Rivals(self._ours, self)

    def remove(self) -> None:
        """Leave torch as it was."""
        self._rivals.remove()

    def forget(self) -> None:
        """This is a forked child."""
        self._rivals.forget()

    def _ours(self) -> Any:
        profiler = self.capture.profiler if self.capture is not None else None
        return profiler.inner if profiler is not None else None

    @property
    def place(self) -> Path | None:
        """Where a copy of what their profiler saves may be kept."""
        return self.capture.session.folder if self.capture is not None else None

    def stands_back(self, capture: Capture) -> bool:
        """Whether our window must not begin: the program's profiler has the session, or waits for it."""
        if not self._rivals.present:
            return False
        if self._rivals.running:
            capture.open_theirs(self.number)
        return True

    def before_theirs(self) -> None:
        """Theirs is about to take the session: end ours."""
        self._guard(self._end_ours)

    def _end_ours(self) -> None:
        capture, plan = self.capture, self._plan
        if capture is None:
            return
        if plan.phase is Phase.OPEN:
            capture.close(self.number, "the program started its own torch.profiler, so the window ended before")
            plan.drop()
        elif plan.phase is Phase.WARMING:
            capture.cancel()
            plan.again()

    def theirs(self, *, running: bool) -> None:
        """Theirs has started, or has just ended."""
        self._guard(self._theirs_runs if running else self._theirs_ended)

    def _theirs_runs(self) -> None:
        plan, capture = self._plan, self.capture
        if capture is not None and plan.phase is Phase.WAITING and plan.due(self.number):
            capture.open_theirs(self.number)

    def _theirs_ended(self) -> None:
        plan, capture = self._plan, self.capture
        if capture is not None and plan.phase is Phase.WAITING and capture.open_now:
            capture.close_theirs(self.number)
            plan.drop()

    def adopt(self, capture: Capture) -> None:
        """Take over what theirs recorded, if ours recorded nothing."""
        if not capture.recorded and self._rivals.has_recorded:
            capture.adopt(self._rivals)
