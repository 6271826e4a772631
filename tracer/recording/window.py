"""Which steps are recorded: so many skipped, some to warm the profiler up, then the window.

Only counts and decides; it starts nothing. A window is asked for at a boundary, and a
boundary's number is that of the step which begins there. Windows of seconds are driven
by `by_time`, the others by boundaries.
"""

from __future__ import annotations

from enum import Enum

from tracer import config

DEFAULT_STEPS = 20
WHOLE_PROGRAM_S = 10.0  # a program that never steps is recorded for so long at most


class Phase(Enum):
    """What is going on."""

    WAITING = "waiting"
    WARMING = "warming"
    OPEN = "open"
    DONE = "done"


class Plan:
    """Says at each boundary in which phase the program is from there on."""

    def __init__(self, window: config.Window) -> None:
        self.window = window
        self.phase = Phase.WAITING
        self.seconds = window.seconds
        self.skip_seconds = float(window.skip) if window.seconds is not None else 0.0
        self.steps = window.steps or DEFAULT_STEPS
        self.opened = 0  # windows so far
        # The boundary at which the next window begins to warm up; None: when asked.
        self._next = None if window.signal or self.by_time else window.skip
        self._asked = False
        self._opens_at = self._closes_at = -1

    @property
    def by_time(self) -> bool:
        """Whether the window is one of seconds, not of steps."""
        return self.seconds is not None

    @property
    def waits_for(self) -> int | None:
        """The boundary at which the window opens, None if it is not known."""
        return None if self._next is None else self._next + self.window.warmup

    @property
    def closes_at(self) -> int | None:
        """The boundary at which the window closes, None if it is not known."""
        if self.by_time:
            return None
        if self.phase in (Phase.WARMING, Phase.OPEN):
            return self._closes_at
        return None if self._next is None else self._next + self.window.warmup + self.steps

    @property
    def stops_at(self) -> int | None:
        """The boundary at which a rank that records nothing stops, None if another must tell it."""
        return None if self.by_time or self.window.signal else self.window.skip + self.window.warmup + self.steps

    @property
    def finished(self) -> bool:
        """Whether no window will open any more."""
        return self.phase is Phase.DONE

    def ask(self) -> None:
        """Open a window at the next boundary (a signal came)."""
        self._asked = True

    @property
    def asked(self) -> bool:
        """Whether a window was asked for and has not begun."""
        return self._asked

    def at(self, number: int) -> Phase:
        """The phase from this boundary on."""
        if self.phase is Phase.WAITING and self.due(number):
            self._asked = False
            self._next = None
            self.phase = Phase.WARMING
            self._opens_at = number + (0 if self.by_time else self.window.warmup)
            self._closes_at = self._opens_at + self.steps
        if self.phase is Phase.WARMING and number >= self._opens_at:
            self.phase = Phase.OPEN
            self.opened += 1
        elif self.phase is Phase.OPEN and not self.by_time and number >= self._closes_at:
            self.close(number)
        return self.phase

    def due(self, number: int) -> bool:
        """Whether a window would begin at this boundary."""
        return self._asked or (self._next is not None and number >= self._next)

    def close(self, number: int) -> None:
        """The window has closed; wait for the next, if there is to be one."""
        every = self.window.every
        if self.window.stop_after or (every is None and self.window.signal is None):
            self.phase = Phase.DONE
            return
        self.phase = Phase.WAITING
        if every is not None and not self.by_time:
            begun = self._opens_at - self.window.warmup
            self._next = max(number, begun + every)

    def drop(self) -> None:
        """No window will open any more."""
        self.phase = Phase.DONE

    def again(self) -> None:
        """The window that was being warmed up did not come to open: begin anew at the next boundary."""
        self.phase = Phase.WAITING
        self._asked = True

    def whole_program(self, seconds: float) -> None:
        """There are no steps to wait for: record from now on, until the program's end or so many seconds later."""
        self.seconds = seconds
        self.skip_seconds = 0.0
        self._next = None
