"""The recorded steps again, without some of their stalls: what would removing each one save?

- As recorded, the replay must give back the recorded step. Where it is off by more than
  3 %, there are no predictions, and we say why.
- Recording slows the host. Where the program's own pace is known from steps outside the
  window, each recorded op and call is made cheaper until the replay runs at that pace.
- A gain has a lower bound (only the wait goes; less what the replay is off by) and a
  likely value (the fix as people write it).
- The GPU's work keeps its recorded time, collectives included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracer.analysis.intervals import total
from tracer.analysis.launches import Launches
from tracer.analysis.replay_graph import Graph, build_graph
from tracer.analysis.replay_removals import DOES_MORE, HOW, Changes, Removal
from tracer.analysis.replay_run import Costs, Plan, Run, as_recorded, faster_host, make_plan, run, shorter_host
from tracer.analysis.replay_window import Window, find_window
from tracer.analysis.stalls import Stalls
from tracer.results import Gain, Replay, Verdict
from tracer.trace import NONE, Steps, Trace

__all__ = ["HOW", "Prediction", "Removal", "predict"]

_ERROR = 0.03  # a replay that is off by more predicts nothing
_RATIO = 1.3  # recording that slows the program by more makes gains a range
_EVENT_NS = 2_000.0  # what recording an op or call may have cost, where the program's own pace is unknown
_DEAREST_EVENT_NS = 10_000.0  # and what it costs at most: a busy machine pays more than the 1 to 6 us of a quiet one
_MOST_HOST = 0.5  # share of the host's time that recording may have added outside of ops and calls
_TYPICAL_EVENT_NS = 4_000.0  # median of the recordings on an H200 whose pace tells it
_ALIKE = 1.005  # paces that differ by less are the same
_AHEAD = 0.95  # untraced steps that are shorter than this share of their GPU work were left by a host that ran ahead
_MANY = 100  # steps from which one pass tells the pace: what is left to drain at its end no longer counts
_BOUND = 0.9  # who is busy for this share of a step holds it


@dataclass(frozen=True, slots=True)
class Prediction:
    """What removing findings would save, alone and together."""

    gains: tuple[Gain | None, ...]  # one for each removal
    replay: Replay
    verdicts: tuple[Verdict, ...] = ()
    limits: tuple[str, ...] = ()
    windows: tuple[tuple[int, int, int], ...] = ()  # what was replayed: rank, start and end


def predict(trace: Trace, launches: Launches, stalls: Stalls, steps: Steps, removals: Sequence[Removal]) -> Prediction:
    """Gains of all removals, the replay's own error, and what holds the program.

    Each rank is replayed by itself; the replay and the verdicts are those of the slowest.
    """
    ranks = np.array([track.rank for track in trace.tracks] or [0])
    of = [int(ranks[trace.spans.track[removal.calls[0]]]) if len(removal.calls) else NONE for removal in removals]
    all_ranks = sorted({int(rank) for rank in ranks[trace.spans.track[launches.call]]} or {0})
    chosen = {rank: [i for i, one in enumerate(of) if one == rank] for rank in all_ranks}
    found = {
        rank: _of_rank(trace, launches, stalls, steps, [removals[i] for i in rows], rank)
        for rank, rows in chosen.items()
    }
    gains: list[Gain | None] = [None] * len(removals)
    for rank, rows in chosen.items():
        for row, gain in zip(rows, found[rank].gains, strict=True):
            gains[row] = gain
    slowest = max(found.values(), key=lambda one: (not one.replay.abstained, one.replay.recorded_ns))
    limits = [limit for one in found.values() for limit in one.limits]
    windows = tuple(window for one in found.values() for window in one.windows)
    if len(found) > 1:
        limits.append("each rank was replayed by itself: collectives keep the time they took, with waiting for others")
    return replace(slowest, gains=tuple(gains), limits=tuple(dict.fromkeys(limits)), windows=windows)


def _of_rank(
    trace: Trace, launches: Launches, stalls: Stalls, steps: Steps, removals: Sequence[Removal], rank: int
) -> Prediction:
    window = find_window(trace, launches, stalls, steps, rank)
    if window is None:
        return _abstain(removals, "no GPU work with its launching call in the trace")
    graph = build_graph(trace, launches, stalls, window.rank, (window.low_ns, window.high_ns), window.track)
    if not len(graph.works):
        return _abstain(removals, "no GPU work was launched in the recorded steps")
    lost = graph.works.dur_ns[graph.works.call == NONE].sum() / max(graph.works.dur_ns.sum(), 1)
    if lost > 0.05:
        return _abstain(removals, f"{lost:.0%} of the GPU work has no launching call in the trace")
    return _Predictor(trace, graph, window).all(removals)


def _abstain(removals: Sequence[Removal], why: str, recorded: int = 0, replayed: int = 0) -> Prediction:
    error = abs(replayed - recorded) / recorded if recorded else 0.0
    return Prediction((None,) * len(removals), Replay(recorded, replayed, error, why))


class _Predictor:
    def __init__(self, trace: Trace, graph: Graph, window: Window) -> None:
        self.graph, self.window = graph, window
        self.plan: Plan = make_plan(graph)
        self.changes = Changes(trace, graph)
        self.count = max(window.steps, 1)
        self.of = "repetition" if window.repeats else "step" if window.steps else "window"
        works = graph.works
        busy = total(works.start_ns, works.start_ns + works.dur_ns)
        self.overlap = busy / max(int(works.dur_ns.sum()), 1)

    def all(self, removals: Sequence[Removal]) -> Prediction:
        window = self.window
        traced = as_recorded(self.graph)
        first = self._run(traced)
        works = self.graph.works
        if window.steps:
            recorded, replayed = (window.high_ns - window.low_ns) // self.count, first.first_ns // self.count
        else:
            end = max(window.high_ns, int((works.start_ns + works.dur_ns).max()))
            recorded, replayed = end - window.low_ns, first.drained_ns
        error = abs(replayed - recorded) / max(recorded, 1)
        if error > _ERROR:
            why = f"replayed as recorded, a step is off by {error:.1%}; above {_ERROR:.0%} nothing is predicted"
            return _abstain(removals, why, recorded, replayed)
        costs, others, clock, pace, limits = self._clock(traced, first, recorded)
        if window.repeats:
            limits += (
                f"the trace names no steps: a gain is for each of the {window.steps} times that "
                f"{window.repeats} came again",
            )
        base, slack = self._run(costs), abs(replayed - recorded)
        scale = pace / max(self._pace(base), 1)
        other_bases = [(other, self._pace(self._run(other))) for other in others]

        def gain(chosen: Sequence[Removal]) -> Gain:
            chosen = [removal for removal in chosen if self.changes.touches(removal)]
            if not chosen:
                return Gain(0, 0, 0.0, clock, self._holds(base, costs), self.of)
            likely_costs = self.changes.without(costs, chosen)
            likely = self._run(likely_costs)
            saved = max(0.0, (self._pace(base) - self._pace(likely)) * scale)
            if saved * 1_000 < pace:  # nothing to bound: below a thousandth of a step
                return Gain(0, round(saved), saved / max(pace, 1), clock, self._holds(likely, likely_costs), self.of)
            lows = [saved]
            if any(removal.how in DOES_MORE for removal in chosen):
                lows.append(
                    (self._pace(base) - self._pace(self._run(self.changes.without(costs, chosen, least=True)))) * scale
                )
            for other, other_pace in other_bases:
                lows.append(other_pace - self._pace(self._run(self.changes.without(other, chosen, least=True))))
            low = max(0.0, min(lows) - slack)
            held_by = self._holds(likely, likely_costs)
            return Gain(round(low), round(saved), saved / max(pace, 1), clock, held_by, self.of)

        gains = tuple(gain([removal]) for removal in removals)
        together = gain(removals) if removals else None
        replay = Replay(recorded, replayed, error, "", together, self.of, window.steps, window.repeats)
        verdicts = self._verdicts(base, costs, together, error, clock)
        return Prediction(gains, replay, verdicts, limits, ((window.rank, window.low_ns, window.high_ns),))

    def _run(self, costs: Costs) -> Run:
        return run(self.plan, costs, once=not 0 < self.window.steps < _MANY)

    def _pace(self, one: Run) -> float:
        return one.steady_ns / self.count if self.window.steps else float(one.drained_ns)

    def _clock(
        self, traced: Costs, first: Run, recorded: int
    ) -> tuple[Costs, list[Costs], str, float, tuple[str, ...]]:
        """The costs to predict with, others that bound the gains from below, the clock, the step, and limits."""
        untraced = self.window.untraced_ns
        ahead = untraced is not None and untraced < _AHEAD * self._busy(traced)
        if untraced is None or ahead:
            why = "the host ran ahead of the GPU in the steps that were not recorded" if ahead else self.window.no_pace
            limit = (
                f"the program's own pace is not known ({why}): gains are a range on the clock of the recording, "
                "whose lower end allows for what recording may have cost"
            )
            return traced, [faster_host(self.graph, traced, _EVENT_NS)], "traced", self._pace(first), (limit,)
        ratio = recorded / max(untraced, 1)
        costs, limits = self._fit(traced, first, untraced), []
        others = []
        if ratio > _RATIO:
            limits.append(f"recording made the program {ratio:.2f} times slower: gains are a range between both clocks")
            others.append(traced)
        return costs, others, "untraced", float(untraced), tuple(limits)

    def _fit(self, traced: Costs, first: Run, untraced: int) -> Costs:
        """Each op and call cheaper by as much as makes the replay run at the program's own pace, as far as that goes.

        Where waits hide the host, the pace tells little about it: of all that would do, the nearest to what
        recording typically costs is taken.
        """
        fastest = self._pace(self._run(faster_host(self.graph, traced, _DEAREST_EVENT_NS)))
        goal = max(float(untraced), fastest)
        least = self._event_cost(traced, goal * _ALIKE) if self._pace(first) > goal * _ALIKE else 0.0
        most = self._event_cost(traced, goal / _ALIKE) if fastest < goal / _ALIKE else _DEAREST_EVENT_NS
        costs = faster_host(self.graph, traced, min(max(_TYPICAL_EVENT_NS, least), max(most, least)))
        if fastest <= untraced * _ALIKE:
            return costs
        # What slowed the host lies in no op or call (its lines, its functions): all of its time is made shorter.
        reach = self._pace(self._run(shorter_host(costs, 1 - _MOST_HOST)))
        goal = max(float(untraced), reach) * _ALIKE
        less = self._least(lambda share: shorter_host(costs, 1 - share), _MOST_HOST, goal)
        return shorter_host(costs, 1 - less)

    def _event_cost(self, traced: Costs, pace: float) -> float:
        """The least cost of an op or call without which the replay is as fast as this."""
        return self._least(lambda event_ns: faster_host(self.graph, traced, event_ns), _DEAREST_EVENT_NS, pace)

    def _least(self, costs_of: Callable[[float], Costs], high: float, pace: float) -> float:
        """The least number up to `high` whose costs replay as fast as this."""
        low = 0.0
        for _ in range(9):
            middle = (low + high) / 2
            if self._pace(self._run(costs_of(middle))) > pace:
                low = middle
            else:
                high = middle
        return high

    def _busy(self, costs: Costs) -> float:
        """GPU work of a step, what overlaps counted once."""
        return float(costs.dur_ns.sum()) * self.overlap / self.count

    def _holds(self, one: Run, costs: Costs) -> str:
        """What holds a replayed step."""
        pace = max(self._pace(one), 1.0)
        if self._busy(costs) >= _BOUND * pace:
            return "the GPU"
        if one.host_ns / self.count >= _BOUND * pace:
            return "the host"
        if one.waited_ns / self.count >= 0.05 * pace:
            return "the waits that are left"
        return "the host and the GPU in turn"

    def _each(self) -> str:
        """What was replayed, in a sentence about a share of it."""
        window = self.window
        if window.repeats:
            return f"each repetition of {window.repeats} ({window.steps} of them)"
        return "a step" if window.steps else "the window"

    def _verdicts(
        self, base: Run, costs: Costs, together: Gain | None, error: float, clock: str
    ) -> tuple[Verdict, ...]:
        pace = max(self._pace(base), 1.0)
        idle = max(0.0, 1 - self._busy(costs) / pace)
        share = together.share if together else 0.0
        most = min(max(share, 0.0) + error, max(idle, share))
        if 1 - idle >= _BOUND and share < 0.1:
            works = f"the GPU works {1 - idle:.0%} of {self._each()}"
            text = f"Device-bound: {works}; removing all of these gains at most {most:.1%}"
            return (Verdict("device_bound", text, most, clock),)
        if share >= 0.1:
            text = f"The waits cost: removing all of these would save about {share:.0%} of {self._each()}"
            return (Verdict("sync_bound", text, share, clock),)
        if base.host_ns / self.count >= 0.8 * pace:
            text = (
                f"Launch-bound: syncs are not your problem, removing all of these gains at most {most:.1%}; "
                f"CUDA graphs or torch.compile would give at most {idle:.0%}"
            )
            return (Verdict("launch_bound", text, idle, clock),)
        return ()
