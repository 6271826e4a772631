"""What happened, in columns.

Times are int64 nanoseconds since `Trace.origin_unix_ns`. Every field name ends in
its unit. -1 (`NONE`) in an id column means none. Columns are numpy arrays, read-only
once the table is made. Readers make Traces; nobody changes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Ids = NDArray[np.int32]
Bytes = NDArray[np.int8]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

NONE = -1


class Kind(IntEnum):
    """What a span is. From KERNEL on, it ran on (or belongs to) a device."""

    OP = 0  # a torch operator or other work that names itself on a thread
    CALL = 1  # a runtime or driver call: cudaLaunchKernel, hipMemcpyWithStream
    MARK = 2  # an annotation of the user: record_function, NVTX, ProfilerStep#3
    PYTHON = 3  # a Python or C function, when the profiler recorded stacks
    OVERHEAD = 4  # what CUPTI calls overhead: "Command Buffer Full", "Lazy Function Loading"
    WAIT = 5  # a synchronisation record (cuda_sync): the host waited, or a stream for another
    KERNEL = 6
    COPY = 7
    FILL = 8
    GPU_MARK = 9  # an annotation projected on a stream: not work
    GPU_OTHER = 10  # a row of a device of unknown kind: shown, not counted


GPU_WORK = (Kind.KERNEL, Kind.COPY, Kind.FILL)


class Table:
    """Columns of equal length."""

    __slots__ = ()

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, name)) for name in self.columns()}
        if len(lengths) > 1:
            raise ValueError(f"{type(self).__name__}: columns of different lengths {sorted(lengths)}")
        for name in self.columns():
            getattr(self, name).setflags(write=False)

    @classmethod
    def columns(cls) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(f.name for f in fields(cls))  # type: ignore[arg-type]

    @classmethod
    def empty(cls) -> Self:
        """A table without rows."""
        return cls(**{f.name: np.empty(0, _DTYPES[str(f.type)]) for f in fields(cls)})  # type: ignore[arg-type]

    @classmethod
    def of(cls, **columns: Any) -> Self:
        """A table from anything array-like, cast to the declared types; no column may be missing."""
        types = {f.name: _DTYPES[str(f.type)] for f in fields(cls)}  # type: ignore[arg-type]
        return cls(**{name: np.array(columns[name], dtype=types[name]) for name in types})

    @classmethod
    def join(cls, parts: list[Self]) -> Self:
        """The rows of several tables, one after the other."""
        if not parts:
            return cls.empty()
        return cls(**{name: np.concatenate([getattr(p, name) for p in parts]) for name in cls.columns()})

    def __len__(self) -> int:
        return len(getattr(self, self.columns()[0]))

    def take(self, rows: Any) -> Self:
        """These rows (a mask or row numbers), as a new table."""
        return type(self)(**{name: getattr(self, name)[rows] for name in self.columns()})


_DTYPES: dict[str, Any] = {
    "Ints": np.int64,
    "Ids": np.int32,
    "Bytes": np.int8,
    "Bools": np.bool_,
    "Floats": np.float64,
}


@dataclass(frozen=True, slots=True)
class Track:
    """A row of the timeline: a thread of a process, or a stream of a device."""

    rank: int  # of the process in its job; 0 if there is only one
    pid: int  # on a GPU track too: the process that owns the work, NONE if unknown
    lane: int  # OS thread id, or stream number
    device: int = NONE  # GPU number; NONE on a thread
    name: str = ""

    @property
    def on_gpu(self) -> bool:
        """Whether this is a device's row."""
        return self.device != NONE


class _Ending(Table):
    """Keeps the column of ends once it was asked for."""

    __slots__ = ("_ends",)
    _ends: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Spans(_Ending):
    """One row for each thing that took time, sorted by start, the outer first."""

    start_ns: Ints
    dur_ns: Ints
    kind: Bytes
    name: Ids  # -> Trace.names
    track: Ids  # -> Trace.tracks
    corr: Ints  # joins a call with its work inside one process; NONE without
    parent: Ids  # -> spans: the innermost OP, MARK or PYTHON span around it on its thread
    nbytes: Ints  # of a copy or fill; NONE elsewhere

    @property
    def end_ns(self) -> Ints:
        """When each span ended. Computed once: rules ask a thousand times, and a large trace has millions of spans."""
        try:
            return self._ends
        except AttributeError:
            ends = self.start_ns + self.dur_ns
            ends.setflags(write=False)
            object.__setattr__(self, "_ends", ends)
            return ends


@dataclass(frozen=True, slots=True, eq=False)
class Frames(Table):
    """One row for each distinct place in a stack; a stack is the row number of its leaf."""

    function: Ids  # -> names
    file: Ids  # -> names
    line: Ids  # 1-based; NONE if unknown
    column: Ids  # 1-based first column of the call, NONE if unknown
    end_column: Ids  # one past the last column, NONE if unknown
    parent: Ids  # -> frames: the caller; NONE at the root


@dataclass(frozen=True, slots=True, eq=False)
class Samples(Table):
    """One row for each stack that a sampler took of one thread."""

    time_ns: Ints
    track: Ids
    frame: Ids  # -> frames: the leaf
    weight_ns: Ints  # time that the sample stands for


@dataclass(frozen=True, slots=True, eq=False)
class Ledger(Table):
    """One row for each synchronisation that was caught in the program, with its Python stack."""

    start_ns: Ints  # NONE where only the end is known
    end_ns: Ints
    track: Ids
    frame: Ids  # -> frames: the leaf; NONE without a stack
    what: Ids  # -> names: "sync" (torch's own warning), "torch.cuda.synchronize", "Event.synchronize", ...


@dataclass(frozen=True, slots=True, eq=False)
class Lines(Table):
    """One row for each run of a line of the user's code, until the thread left that line."""

    start_ns: Ints
    dur_ns: Ints
    track: Ids
    frame: Ids  # -> frames


@dataclass(frozen=True, slots=True, eq=False)
class Reads(Table):
    """One row for each time the program read a clock."""

    time_ns: Ints
    track: Ids
    clock: Ids  # -> names: "time.perf_counter", "cuda.elapsed_time", ...
    value_ns: Ints  # what the program got
    frame: Ids  # -> frames


@dataclass(frozen=True, slots=True, eq=False)
class EventTimings(Table):
    """One row for each `start.elapsed_time(end)` of CUDA events."""

    time_ns: Ints  # when it was asked
    track: Ids
    claimed_ns: Ints
    start_ns: Ints  # when the start event was recorded on the host
    end_ns: Ints
    start_stream: Ints
    end_stream: Ints
    frame: Ids


@dataclass(frozen=True, slots=True, eq=False)
class Steps(Table):
    """One row for each step of the program, inside the recorded window or not."""

    start_ns: Ints
    dur_ns: Ints
    number: Ints
    track: Ids  # the thread that stepped
    traced: Bools  # False: outside the window, at the program's own speed


@dataclass(frozen=True, slots=True, eq=False)
class Counters(Table):
    """One row for each value of a counter (memory, allocator, clocks)."""

    time_ns: Ints
    name: Ids  # -> names
    track: Ids  # NONE: of the process or device as a whole
    device: Ids  # GPU number or NONE
    value: Floats


@dataclass(frozen=True, slots=True, eq=False)
class OpDetails(Table):
    """What only operators have."""

    span: Ids
    sequence: Ints  # autograd sequence number: the same for an op and its backward
    forward_lane: Ints  # thread id of the forward op; 0 or NONE in forward itself
    shapes: Ids  # -> names: "[[32, 128], []]"; NONE if not recorded


@dataclass(frozen=True, slots=True, eq=False)
class WorkDetails(Table):
    """What only GPU work has."""

    span: Ids
    grid: Ids  # -> names: "132x1x1"; NONE if not recorded
    block: Ids
    graph_node: Ints  # NONE outside CUDA graphs
    peer: Ids  # other device of a peer copy; NONE


@dataclass(frozen=True, slots=True, eq=False)
class WaitDetails(Table):
    """What only synchronisation records (Kind.WAIT) have."""

    span: Ids
    stream: Ints  # stream that was waited for, or that waits; NONE: the whole device
    source_stream: Ints  # "Stream Wait Event": the stream that it waits for; NONE if unknown
    source_corr: Ints  # correlation of the cudaEventRecord; NONE if unknown
    device: Ids  # GPU number; NONE if unknown


@dataclass(frozen=True, slots=True, eq=False)
class Collectives(Table):
    """One row for each collective kernel that says who takes part."""

    span: Ids
    name: Ids  # -> names: "allreduce"
    group: Ids  # -> names: process group
    sequence: Ints  # number of the collective in its group; NONE if unknown
    nbytes: Ints


@dataclass(frozen=True, slots=True)
class Loss:
    """Something that the reader had to leave out."""

    what: str
    offset: int = NONE  # byte in the (uncompressed) file
    count: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """What happened."""

    origin_unix_ns: int
    names: tuple[str, ...]
    tracks: tuple[Track, ...]
    spans: Spans
    frames: Frames = field(default_factory=Frames.empty)
    samples: Samples = field(default_factory=Samples.empty)
    ledger: Ledger = field(default_factory=Ledger.empty)
    lines: Lines = field(default_factory=Lines.empty)
    reads: Reads = field(default_factory=Reads.empty)
    event_timings: EventTimings = field(default_factory=EventTimings.empty)
    steps: Steps = field(default_factory=Steps.empty)
    counters: Counters = field(default_factory=Counters.empty)
    ops: OpDetails = field(default_factory=OpDetails.empty)
    work: WorkDetails = field(default_factory=WorkDetails.empty)
    waits: WaitDetails = field(default_factory=WaitDetails.empty)
    collectives: Collectives = field(default_factory=Collectives.empty)
    window_ns: tuple[int, int] | None = None  # what was recorded; None: from the first to the last span
    sources: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))  # file -> text
    losses: tuple[Loss, ...] = ()
    meta: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def on_gpu(self) -> Bools:
        """For each span, whether its track is a device's."""
        flags = np.array([t.on_gpu for t in self.tracks] or [False], dtype=np.bool_)
        return flags[self.spans.track]

    @property
    def is_work(self) -> Bools:
        """For each span, whether it is a kernel, copy or fill on a device."""
        return np.isin(self.spans.kind, GPU_WORK)

    def name_rows(self, *wanted: str) -> Bools:
        """For each span, whether it has one of these names."""
        ids = [i for i, name in enumerate(self.names) if name in wanted]
        return np.isin(self.spans.name, ids)
