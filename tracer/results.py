"""What we say about a trace. Reports print these and compute nothing; their JSON has these names as keys.

Times are nanoseconds. A field that could not be determined is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SCHEMA = 1
SHOWN_ROWS = 8  # of idle time, in a report that has no room for all


@dataclass(frozen=True, slots=True)
class Place:
    """A line of code, and how we know it."""

    file: str
    line: int  # 1-based; 0 if only the file is known
    function: str = ""
    columns: tuple[int, int] | None = None  # 1-based first column and one past the last
    source: str = ""  # "ledger", "lines", "samples", "events", "source" (read off the text)
    exact: bool = True  # False: only the function is sure (its def line is given)
    excerpt: str = ""  # the line's text, if the source is at hand


@dataclass(frozen=True, slots=True)
class Gain:
    """What removing something would save for each step, from the replay."""

    low_ns: int
    likely_ns: int
    share: float  # likely gain as a fraction of the step
    clock: str  # "untraced" or "traced": which step time it refers to
    bottleneck: str = ""  # what would hold the program then
    of: str = "step"  # what it is saved in: "step", "repetition" or "window"


@dataclass(frozen=True, slots=True)
class Cost:
    """A finding's cost in one step, on average."""

    count: float
    waits: float
    stall_ns: float
    idle_ns: float
    lead_ns: float


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause of stalls or idle time at one place on one thread."""

    id: str  # stable for the same rule and place: "SYNC001-3fa2c1"
    rule: str
    kind: str  # class word: "sync.item", "copy.pageable_h2d", ...
    title: str
    severity: str  # "error", "warning", "info"
    place: Place | None  # the user's own line
    library_place: Place | None = None  # the line below it, in a library
    op: str = ""  # which call: "item", "bool", "mask_index", "nonzero", ...
    thread: str = ""
    rank: int = 0
    device: int = 0
    confidence: str = "high"  # "high", "medium", "low"
    count: int = 0  # outermost calls made from Python that waited
    waits: int = 0  # synchronisations below them
    stall_ns: int = 0  # host held: union, over the window
    idle_ns: int = 0  # GPU idle that follows from it
    lead_ns: int = 0  # queued GPU work that the host was ahead by, and lost
    per_step: Cost | None = None
    gain_ns: Gain | None = None  # None if not simulated
    harmless: bool = False  # held behind a busy GPU: costs no throughput
    message: str = ""  # one sentence with the numbers in it
    fix: str = ""
    notes: tuple[str, ...] = ()
    accepted: str = ""  # reason given in the source: "# tracer: ok SYNC001 reason"
    baseline: str = ""  # "new" or "known" if there was a baseline to compare with
    first_ns: int = 0  # where to look: start of its dearest stall, since the trace's origin
    first_dur_ns: int = 0
    callers: tuple[Place, ...] = ()  # user frames above the place, innermost first
    details: Mapping[str, float | int | str] = field(
        default_factory=dict
    )  # numbers of the rule: claimed_ns, ratio, ...

    @property
    def identity(self) -> tuple[str, ...]:
        """What stays the same when lines move or files lie elsewhere: rule, call, file, function, the line's text."""
        place = self.place or self.library_place
        if place is None:
            return (self.rule, self.op, "", "", str(self.device))
        file = place.file.replace("\\", "/").rpartition("/")[2]
        return (self.rule, self.op, file, place.function, place.excerpt.strip() or str(place.line))


@dataclass(frozen=True, slots=True)
class Step:
    """One recorded step on one device."""

    number: int
    rank: int
    start_ns: int  # since the trace's origin
    wall_ns: int
    busy_ns: int  # GPU, union over streams
    idle_ns: int
    stalled_ns: int  # host thread that steps held in calls, union


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the program is without and with recording."""

    steps_from: str = ""  # "annotations", "optimizer", "tracer.step", "seconds", ...
    untraced_ns: int | None = None  # median step outside the window
    traced_ns: int | None = None  # median step inside
    ratio: float | None = None
    untraced_count: int = 0
    traced_count: int = 0


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU over the whole window."""

    device: int
    rank: int
    name: str
    busy_ns: int
    idle_ns: int
    window_ns: int
    kernels: int
    streams: int


@dataclass(frozen=True, slots=True)
class Spread:
    """Order statistics of a set of durations."""

    count: int
    mean_ns: float
    p50_ns: float
    p90_ns: float
    p99_ns: float
    min_ns: int
    max_ns: int


@dataclass(frozen=True, slots=True)
class Launching:
    """The async gap: from a launching call to the start of its work."""

    launches: int  # calls with work in the trace
    works: int  # GPU work with a call in the trace
    orphans: int  # launching calls without work
    unlaunched: int  # work without a call
    from_call_start: Spread | None
    from_call_end: Spread | None
    before_call_start: int  # works that start before their call: the clocks disagree
    max_queue_depth: int
    mean_lead_ns: float  # queued GPU work ahead of the host, mean over time
    max_lead_ns: int


@dataclass(frozen=True, slots=True)
class Hot:
    """A kernel, operator or copy direction by the GPU time it took."""

    name: str
    count: int
    total_ns: int
    mean_ns: float
    share: float  # of the GPU's busy time
    nbytes: int = 0
    gb_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class IdleRow:
    """Part of the GPU's idle time with one cause and one place."""

    cause: str  # class word, or "unknown", "head", "tail"
    rule: str
    ns: int
    count: int
    share: float  # of all idle time
    place: Place | None = None
    device: int = 0
    rank: int = 0


@dataclass(frozen=True, slots=True)
class LineCost:
    """What one line of the user's code cost."""

    file: str
    line: int
    count: int
    held_ns: int
    idle_ns: int
    samples: int = 0  # sampled while the GPU was idle


@dataclass(frozen=True, slots=True)
class Timer:
    """A pair of clock reads (or events) that the program subtracts, and the truth."""

    start: Place | None
    end: Place | None
    clock: str
    count: int
    claimed_ns: float  # median
    true_ns: float | None  # median GPU time of the work launched in between
    ratio: float | None  # true / claimed
    still_running_ns: float
    ran_in_ns: float
    verdict: str  # "honest", or the class word
    rule: str = ""
    message: str = ""
    first_over_median: float | None = None  # first use over the median of the others; None below three uses


@dataclass(frozen=True, slots=True)
class Verdict:
    """An answer about the whole window."""

    id: str  # "device_bound", "launch_bound", "input_bound", "sync_bound", "no_gpu", ...
    text: str
    share: float | None = None
    clock: str = ""


@dataclass(frozen=True, slots=True)
class Replay:
    """How well the replay gives back what was recorded, and what everything together would gain."""

    recorded_ns: int  # step
    replayed_ns: int
    error: float
    abstained: str = ""  # why there are no predictions
    together: Gain | None = None
    of: str = "step"  # what was replayed: "step", "repetition" (of `repeats`) or "window"
    times: int = 0  # how many of them
    repeats: str = ""  # without steps: the call that came again and again


@dataclass(frozen=True, slots=True)
class Curve:
    """A line to draw: values over time, thinned to what a picture can show."""

    name: str  # "lead", "depth", "busy"
    unit: str
    time_ns: tuple[int, ...]
    value: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """What to draw of one step."""

    title: str  # "typical step", "worst step"
    step: int
    start_ns: int
    wall_ns: int
    curves: tuple[Curve, ...]
    busy: tuple[tuple[int, int], ...]  # start, duration
    stalls: tuple[tuple[int, int, str, bool], ...]  # start, duration, finding id, harmless


@dataclass(frozen=True, slots=True)
class BudgetLine:
    """One limit of a budget, and whether it was kept."""

    name: str
    limit: float
    actual: float
    unit: str
    ok: bool
    place: Place | None = None  # the dearest line that broke it
    tolerance: float = 0.0  # fraction of the limit by which it may be passed


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A comment in the user's source that accepts a finding: `# tracer: ok SYNC001 reason`."""

    rule: str
    reason: str
    place: Place
    used: bool  # False: nothing was found there, so the comment can go


@dataclass(frozen=True, slots=True)
class Summary:
    """The window in one sentence and a few figures: means over the recorded steps, or the window if there are none."""

    headline: str = ""
    of: str = "window"  # "step" or "window"
    steps: int = 0
    wall_ns: float = 0.0
    busy_ns: float | None = None  # None: no GPU in the trace
    idle_ns: float | None = None
    stalled_ns: float = 0.0
    busy_share: float | None = None  # of wall
    idle_share: float | None = None
    stalled_share: float = 0.0
    syncs: float = 0.0  # calls that waited, a step (or in the window)


@dataclass(frozen=True, slots=True)
class Audit:
    """All that we say about one trace."""

    schema: int
    source: str  # path of the trace or recording
    window_ns: int
    steps: tuple[Step, ...]
    pace: Pace
    devices: tuple[Device, ...]
    findings: tuple[Finding, ...]  # dearest first
    idle: Mapping[str, int]  # cause -> ns; sums to the devices' idle time
    idle_rows: tuple[IdleRow, ...]
    lines: tuple[LineCost, ...]
    timers: tuple[Timer, ...]
    launching: Launching
    kernels: tuple[Hot, ...]
    ops: tuple[Hot, ...]
    copies: tuple[Hot, ...]
    verdicts: tuple[Verdict, ...]
    limits: tuple[str, ...]  # what the trace cannot show
    replay: Replay | None = None
    pictures: tuple[Picture, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)  # file -> text, for annotated views
    budget: tuple[BudgetLine, ...] = ()
    meta: Mapping[str, str] = field(default_factory=dict)
    complete: bool = True  # False: part of the trace is missing
    summary: Summary = field(default_factory=Summary)
    acceptances: tuple[Acceptance, ...] = ()
    idle_others: IdleRow | None = None  # the rows of idle time beyond the first SHOWN_ROWS as one; None if none are


@dataclass(frozen=True, slots=True)
class Change:
    """A figure in two audits."""

    name: str
    before: float
    after: float
    unit: str
    significant: bool
    verdict: str  # "better", "worse", "same"


@dataclass(frozen=True, slots=True)
class FindingChange:
    """A finding in two audits, matched by rule and place."""

    verdict: str  # "new", "gone", "better", "worse", "same"
    before: Finding | None
    after: Finding | None


@dataclass(frozen=True, slots=True)
class Diff:
    """Two audits side by side."""

    schema: int
    before: str
    after: str
    figures: tuple[Change, ...]
    findings: tuple[FindingChange, ...]
    kernels: tuple[Change, ...]
    regression: bool
    text: str


@dataclass(frozen=True, slots=True)
class Measured:
    """One candidate of a benchmark."""

    name: str
    gpu_ns: Spread | None
    host_ns: Spread  # to launch
    wall_ns: Spread  # with synchronisation
    interval_ns: tuple[float, float]  # confidence interval of the median
    confidence: float
    naive_ns: float  # what a timer without synchronisation claims
    launch_bound: bool
    repeats: int
    warmups: int
    outliers: int
    notes: tuple[str, ...] = ()
    hot_ns: float | None = None  # GPU time with the inputs still in the L2 cache, where the other runs flush it
    times_ns: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark's answer."""

    schema: int
    device: str
    candidates: tuple[Measured, ...]
    notes: tuple[str, ...] = ()
    meta: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Flying:
    """A launch that the GPU had not finished when it died."""

    place: Place | None
    op: str  # with shapes and dtypes, if operators were watched
    thread: str


@dataclass(frozen=True, slots=True)
class Sighting:
    """What one run of the program showed of the error."""

    blocking: bool
    status: int | None  # None: stopped at the time limit
    seconds: float
    reproduced: bool  # a CUDA error came up
    error: str = ""  # its text
    reported: Place | None = None  # the user's line that was blamed
    reported_library: Place | None = None  # the library's line below it
    bracket: tuple[Place, ...] = ()  # the lines between the last mark that landed and the next, likeliest first
    marks: int = 0  # that the GPU never reached
    marks_from: str = ""  # "lines", "operators", "thinned lines", or why there are none
    op: str = ""
    callers: tuple[Place, ...] = ()
    times: int | None = None  # how often the line had run before
    forward: Place | None = None  # the forward op whose gradient was being computed
    offending: tuple[str, ...] = ()
    in_flight: tuple[Flying, ...] = ()  # newest first
    assertions: tuple[str, ...] = ()
    later: tuple[Place, ...] = ()  # lines that failed afterwards, for the same reason
    process: str = ""  # rank, pid, thread
    others: tuple[str, ...] = ()  # other processes that met an error, and other streams that may be guilty


@dataclass(frozen=True, slots=True)
class Located:
    """Where a CUDA error came from."""

    schema: int
    command: str
    status: int  # the program's own exit status
    kind: str  # "async.assert", "async.illegal", ...; "async.unlocalised"; "" if no CUDA error came up
    what: str  # the kind in words
    cause: Place | None
    cause_from: str  # "marks", "blocking run", "both", "traceback"
    confidence: str  # "high", "medium", "low"; "" without a cause
    iteration: int | None  # how often the line had run before
    op: str
    offending: tuple[str, ...]
    callers: tuple[Place, ...]  # user frames above the cause, innermost first
    forward: Place | None
    first: Sighting
    second: Sighting | None = None
    advice: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
