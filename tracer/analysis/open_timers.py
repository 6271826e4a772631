"""The timers that run at one point of the text, and what was launched and waited for since they began."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracer.analysis.source_calls import Read


@dataclass(frozen=True, slots=True)
class SourceTimer:
    """Two clock reads (or CUDA events) that the text subtracts."""

    start: Read
    end: Read
    function: str
    launches: int  # calls in between that look like GPU work
    waited: bool  # something waits between the last of them and the end
    clean_start: bool  # nothing looks like unfinished GPU work at the start
    events: bool = False  # CUDA events with elapsed_time
    collected: bool = False  # the difference is appended or added to others, so that a cold first one counts
    deadline: bool = False  # the difference is only compared, to stop in time
    kept: str = ""  # the name that holds the start

    @property
    def stopped_early(self) -> bool:
        """Whether a clock is read at its end while the work launched on the way may still run."""
        return self.launches > 0 and not (self.waited or self.events or self.deadline)

    @property
    def started_dirty(self) -> bool:
        """Whether it waits at its end, but older work may run at its start."""
        return self.launches > 0 and self.waited and not (self.clean_start or self.events or self.deadline)


@dataclass(eq=False)  # told apart by what they are, not by what they hold
class Open:
    """A clock read or a recorded event, and what has happened since."""

    read: Read
    launches: int = 0
    waited: bool = True
    clean: bool = True
    before: frozenset[str] = frozenset()  # calls that may have left work behind, if they were GPU work at all
    excused: bool = False  # it runs over a loop that waits in each turn

    def settle(self) -> None:
        """What ran at its start is no matter."""
        self.clean, self.before = True, frozenset()


class OpenTimers:
    """Clock reads by the names that keep them, events by theirs, and the timers that have ended."""

    def __init__(self) -> None:
        self.kept: dict[str, Open] = {}
        self.found: list[SourceTimer] = []
        self.launched = 0
        self.only: set[Open] | None = None  # in a loop's second turn, the timers that came from the first
        self._events: dict[str, Open] = {}
        self._happened: dict[str, bool] = {}  # event -> whether something waited since it was recorded
        self._ended: dict[str, tuple[Open, dict[Open, Open]]] = {}
        self._unfinished = False
        self._left: set[str] = set()  # calls that may have left work behind since the last wait

    def start(self, name: str, read: Read) -> None:
        """A clock's value is kept under a name; it may be a start or an end."""
        self.kept[name] = Open(read, clean=not self._unfinished, before=frozenset(self._left))
        # What a name held while another read was open is needed when both are subtracted later.
        self._ended[name] = self.kept[name], {timer: replace(timer) for timer in self.running()}

    def rename(self, name: str, other: str) -> None:
        """A read is kept under another name, too."""
        self.kept[other] = self.kept[name]
        if name in self._ended:
            self._ended[other] = self._ended[name]

    def running(self) -> list[Open]:
        """All that have begun."""
        return list(dict.fromkeys([*self.kept.values(), *self._events.values()]))

    def wait(self) -> None:
        """All work that was launched is done."""
        self._unfinished = False
        self._left.clear()
        self._happened = dict.fromkeys(self._happened, True)
        for timer in self.running():
            timer.waited = True

    def launch(self, call: str = "", *, known: bool = True) -> None:
        """Work is launched: by torch on a tensor that is known, or by a call of which little is."""
        self._unfinished |= known
        self._left.add(call)
        self.launched += 1
        for timer in self.running():
            if call and call in timer.before and not timer.launches:  # the same was called just before, to warm up
                timer.clean &= timer.excused
            timer.launches += 1
            timer.waited = timer.excused

    def record(self, event: str, read: Read) -> None:
        """An event is recorded."""
        self._events[event] = Open(read)
        self._happened[event] = not self._left

    def is_event(self, name: str) -> bool:
        """Whether an event of this name was recorded."""
        return name in self._events

    def wait_for(self, event: str) -> None:
        """The host waits for an event: work that was launched after it may still run."""
        if not self._events[event].launches:
            self.wait()
            return
        for earlier in self._happened:
            self._happened[earlier] = True
            if earlier == event:
                break

    def subtract(self, kept: str, end: Read | str, function: str, *, collected: bool, deadline: bool) -> None:
        """A read, or one that is kept under a name, less what is kept under another."""
        start = self.kept.get(kept)
        if start is None or (self.only is not None and start not in self.only):
            return
        if isinstance(end, str):
            ended, then = self._ended.get(end, (None, {}))
            if ended is None or start not in then:
                return
            start, end = then[start], ended.read
        self.found.append(
            SourceTimer(
                start.read,
                end,
                function,
                start.launches,
                start.waited,
                start.clean,
                collected=collected,
                deadline=deadline,
                kept=kept,
            )
        )

    def elapsed(self, start: str, end: str, asked: Read, function: str, *, collected: bool) -> None:
        """The time between two events is asked for."""
        if self.is_event(start) and self.is_event(end):
            begun, happened = self._events[start], self._happened[end]
            timer = SourceTimer(begun.read, asked, function, begun.launches, happened, True, True, collected)
            self.found.append(timer)
