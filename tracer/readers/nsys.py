"""Reads the SQLite file that Nsight Systems exports (`nsys export --type sqlite`).

- Names and their places follow what torch.profiler writes, so that every rule knows them:
  `cudaLaunchKernel_v7000` is cudaLaunchKernel, a copy is `Memcpy HtoD (Pageable -> Device)`.
- Ranges that torch's own NVTX emitter made (`aten::mm, seq = 12, op_id = 34`) are operators.
- Tables and columns differ from version to version; what is not there reads as none.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from tracer.building import TraceBuilder
from tracer.errors import TraceError
from tracer.readers._nsys_names import call_name, copy_name, python_file, split_range, sync_name
from tracer.trace import NONE, Ids, Ints, Kind, Loss, OpDetails, Samples, Trace, WaitDetails, WorkDetails

_MAGIC = b"SQLite format 3\0"
_FIX = "export it again: nsys export --type sqlite REPORT.nsys-rep"
_MOST_WARNINGS = 8
_RANGES = (59, 60, 70, 71)  # push/pop and start/end ranges of NVTX


def accepts(path: Path, head: bytes) -> bool:
    """By SQLite's first bytes."""
    return head.startswith(_MAGIC)


def load(path: Path) -> Trace:
    """The trace in one export."""
    builder = TraceBuilder()
    builder.meta["format"] = "nsys"
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            database.text_factory = lambda raw: raw.decode("utf-8", "replace")
            _Export(path, database, builder).read()
    except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
        raise TraceError(f"{path} is a damaged SQLite file", why=str(error), fix=_FIX) from error
    builder.start_at_first()
    return builder.build()


class _Export:
    """One file."""

    def __init__(self, path: Path, database: sqlite3.Connection, builder: TraceBuilder) -> None:
        self._path = path
        self._database = database
        self._builder = builder
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self._columns = {name: self._columns_of(name) for (name,) in tables.fetchall()}
        self._strings: dict[int, str] = {}
        self._thread_names: dict[int, str] = {}
        self._shift_ns = 0

    def _columns_of(self, table: str) -> set[str]:
        quoted = table.replace('"', '""')
        return {row[1] for row in self._database.execute(f'PRAGMA table_info("{quoted}")')}

    def read(self) -> None:
        """Everything that we use."""
        if "StringIds" not in self._columns:
            raise TraceError(f"{self._path} is a SQLite file, but no export of Nsight Systems", fix=_FIX)
        self._strings = dict(self._database.execute("SELECT id, value FROM StringIds"))
        if "ThreadNames" in self._columns:
            names = self._database.execute("SELECT globalTid, nameId FROM ThreadNames")
            self._thread_names = {thread: self._strings.get(name, "") for thread, name in names}
        self._read_meta()
        self._read_calls()
        self._read_kernels()
        self._read_copies()
        self._read_fills()
        self._read_graphs()
        self._read_waits()
        self._read_ranges()
        self._read_overhead()
        self._read_samples()
        self._read_diagnostics()

    def _rows(self, table: str, *wanted: str) -> Ints:
        """Columns of integers, NONE where there is no value or no such column; empty without the table."""
        if table not in self._columns:
            return np.empty((len(wanted), 0), np.int64)
        known = self._columns[table]
        fields = ", ".join(f'COALESCE("{name}", {NONE})' if name in known else str(NONE) for name in wanted)
        rows = self._database.execute(f'SELECT {fields} FROM "{table}"').fetchall()
        return np.array(rows, np.int64).reshape(-1, len(wanted)).T

    def _first(self, table: str, *wanted: str) -> list[Any]:
        if table not in self._columns or not set(wanted) <= self._columns[table]:
            return [None] * len(wanted)
        row = self._database.execute(f'SELECT {", ".join(wanted)} FROM "{table}" LIMIT 1').fetchone()
        return list(row or [None] * len(wanted))

    def _read_meta(self) -> None:
        meta = self._builder.meta
        (utc,) = self._first("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
        (clock,) = self._first("TARGET_INFO_SESSION_START_TIME", "systemClockNs")
        self._shift_ns = int(utc or 0) - int(clock or 0)
        if "TARGET_INFO_GPU" in self._columns:
            for number, name in self._database.execute("SELECT id, name FROM TARGET_INFO_GPU"):
                meta[f"device.0.{number}"] = str(name)
        if "META_DATA_EXPORT" in self._columns:
            known = dict(self._database.execute("SELECT name, value FROM META_DATA_EXPORT"))
            meta["nsys_version"] = str(known.get("EXPORT_PRODUCT_VERSION", ""))
        if "TARGET_INFO_SYSTEM_ENV" in self._columns:
            known = dict(self._database.execute("SELECT name, value FROM TARGET_INFO_SYSTEM_ENV"))
            meta["host"] = str(known.get("Hostname", ""))
            meta["cuda_driver_version"] = str(known.get("CudaDriverVersion", ""))

    # -- ids ----------------------------------------------------------------------------

    def _threads(self, global_tids: Ints) -> Ids:
        """Tracks of threads: a global id holds the process above bit 24 and the thread below."""
        numbers, which = np.unique(global_tids, return_inverse=True)
        names = self._thread_names
        tracks = [
            self._builder.track(0, number >> 24 & 0xFFFFFF, number & 0xFFFFFF, NONE, names.get(number, ""))
            for number in numbers.tolist()
        ]
        return np.array(tracks, np.int32)[which]

    def _streams(self, global_pids: Ints, devices: Ints, streams: Ints) -> Ids:
        keys, which = np.unique(np.stack([global_pids, devices, streams]), axis=1, return_inverse=True)
        tracks = [
            self._builder.track(0, pid >> 24 & 0xFFFFFF if pid >= 0 else NONE, stream, device, f"stream {stream}")
            for pid, device, stream in keys.T.tolist()
        ]
        return np.array(tracks, np.int32)[which.reshape(-1)]

    def _names(self, ids: Ints, *, call: bool = False) -> Ids:
        numbers, which = np.unique(ids, return_inverse=True)
        texts = [self._strings.get(number, "") for number in numbers.tolist()]
        if call:
            texts = [call_name(text) for text in texts]
        return np.array([self._builder.name(text) for text in texts], np.int32)[which]

    def _add(self, start: Ints, end: Ints, **columns: Any) -> Ids:
        """New spans; the rows to use in detail tables. Nothing may end before it starts."""
        wrong = end < start
        if wrong.any():
            self._builder.losses.append(Loss("records that end before they start, made empty", count=int(wrong.sum())))
        rows = self._builder.add_spans(start + self._shift_ns, np.maximum(end - start, 0), **columns)
        return np.array(rows, np.int32)

    # -- tables -------------------------------------------------------------------------

    def _read_calls(self) -> None:
        wanted = ("start", "end", "globalTid", "correlationId", "nameId")
        start, end, thread, corr, name = self._rows("CUPTI_ACTIVITY_KIND_RUNTIME", *wanted)
        names = self._names(name, call=True)
        self._add(start, end, kind=Kind.CALL, name=names, track=self._threads(thread), corr=corr)

    def _read_kernels(self) -> None:
        wanted = ("start", "end", "globalPid", "deviceId", "streamId", "correlationId", "demangledName", "graphNodeId")
        others = ("shortName", "mangledName")  # of kernels without a readable one
        sizes = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
        found = self._rows("CUPTI_ACTIVITY_KIND_KERNEL", *wanted, *sizes, *others)
        start, end, pid, device, stream, corr, name, node = found[:8]
        for other in found[14:]:
            name = np.where(np.isin(name, list(self._strings)), name, other)
        track = self._streams(pid, device, stream)
        rows = self._add(start, end, kind=Kind.KERNEL, name=self._names(name), track=track, corr=corr)
        self._add_work(rows, node, grid=self._sizes(found[8:11]), block=self._sizes(found[11:14]))

    def _sizes(self, sizes: Ints) -> Ids:
        keys, which = np.unique(sizes, axis=1, return_inverse=True)
        texts = ["x".join(map(str, key)) for key in keys.T.tolist()]
        ids = [NONE if "-" in text else self._builder.name(text) for text in texts]
        return np.array(ids, np.int32)[which.reshape(-1)]

    def _add_work(self, rows: Ids, node: Ints, *, grid: Any = NONE, block: Any = NONE, peer: Any = NONE) -> None:
        if len(rows):
            columns = {"grid": grid, "block": block, "peer": peer}
            full = {key: np.broadcast_to(value, len(rows)) for key, value in columns.items()}
            node = np.where(node == 0, NONE, node)
            self._builder.add_table("work", WorkDetails.of(span=rows, graph_node=node, **full))

    def _read_copies(self) -> None:
        wanted = ("start", "end", "globalPid", "deviceId", "streamId", "correlationId", "bytes", "graphNodeId")
        found = self._rows("CUPTI_ACTIVITY_KIND_MEMCPY", *wanted, "copyKind", "srcKind", "dstKind", "dstDeviceId")
        start, end, pid, device, stream, corr, size, node, *kinds, peer = found
        keys, which = np.unique(np.stack(kinds), axis=1, return_inverse=True)
        names = [self._builder.name(copy_name(*key)) for key in keys.T.tolist()]
        rows = self._add(
            start,
            end,
            kind=Kind.COPY,
            name=np.array(names, np.int32)[which.reshape(-1)],
            track=self._streams(pid, device, stream),
            corr=corr,
            nbytes=size,
        )
        self._add_work(rows, node, peer=np.where(kinds[0] == 10, peer, NONE))

    def _read_fills(self) -> None:
        wanted = ("start", "end", "globalPid", "deviceId", "streamId", "correlationId", "bytes", "graphNodeId")
        start, end, pid, device, stream, corr, size, node = self._rows("CUPTI_ACTIVITY_KIND_MEMSET", *wanted)
        name = self._builder.name("Memset (Device)")
        track = self._streams(pid, device, stream)
        rows = self._add(start, end, kind=Kind.FILL, name=name, track=track, corr=corr, nbytes=size)
        self._add_work(rows, node)

    def _read_graphs(self) -> None:
        """CUDA graphs that were traced as a whole: one piece of work for each launch."""
        wanted = ("start", "end", "globalPid", "deviceId", "streamId", "correlationId")
        start, end, pid, device, stream, corr = self._rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", *wanted)
        name, track = self._builder.name("CUDA graph"), self._streams(pid, device, stream)
        self._add(start, end, kind=Kind.KERNEL, name=name, track=track, corr=corr)

    def _read_waits(self) -> None:
        """Each on the thread of its call, or on one without number."""
        wanted = ("start", "end", "globalPid", "deviceId", "streamId", "correlationId", "syncType")
        start, end, pid, device, stream, corr, sort = self._rows("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", *wanted)
        if not len(start):
            return
        kinds, which = np.unique(sort, return_inverse=True)
        names = [self._builder.name(sync_name(kind)) for kind in kinds.tolist()]
        thread, call = self._rows("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid", "correlationId")
        callers = {(tid >> 24, number): tid for tid, number in zip(thread.tolist(), call.tolist(), strict=True)}
        pairs = zip(pid.tolist(), corr.tolist(), strict=True)
        seat = np.array([callers.get((process >> 24, number), NONE) for process, number in pairs], np.int64)
        track = np.zeros(len(seat), np.int32)
        for process in np.unique(pid[seat == NONE]).tolist():
            unknown = self._builder.track(0, process >> 24 & 0xFFFFFF, NONE, NONE, "thread unknown")
            track[(seat == NONE) & (pid == process)] = unknown
        track[seat != NONE] = self._threads(seat[seat != NONE])
        rows = self._add(start, end, kind=Kind.WAIT, name=np.array(names, np.int32)[which], track=track, corr=corr)
        nothing = np.full(len(rows), NONE)
        stream = np.where(stream >= 2**31, NONE, stream)
        table = WaitDetails.of(span=rows, stream=stream, source_stream=nothing, source_corr=nothing, device=device)
        self._builder.add_table("waits", table)

    def _read_ranges(self) -> None:
        wanted = ("start", "end", "eventType", "globalTid", "textId")
        start, end, sort, thread, text_id = self._rows("NVTX_EVENTS", *wanted)
        if not len(start):
            return
        texts = [text for (text,) in self._database.execute("SELECT text FROM NVTX_EVENTS")]
        keep = np.isin(sort, _RANGES) & (end >= start)
        shown = [(texts[at], int(text_id[at])) for at in np.flatnonzero(keep).tolist()]
        ranges = [split_range(self._strings.get(at, "") if text is None else text) for text, at in shown]
        rows = self._add(
            start[keep],
            end[keep],
            kind=np.array([Kind.OP if found.is_op else Kind.MARK for found in ranges], np.int8),
            name=np.array([self._builder.name(found.name) for found in ranges], np.int32),
            track=self._threads(thread[keep]),
        )
        ops = [(row, found) for row, found in zip(rows.tolist(), ranges) if found.sequence != NONE or found.shapes]
        table = OpDetails.of(
            span=[row for row, _ in ops],
            sequence=[found.sequence for _, found in ops],
            forward_lane=np.full(len(ops), NONE),
            shapes=[self._builder.name(found.shapes) if found.shapes else NONE for _, found in ops],
        )
        self._builder.add_table("ops", table)

    def _read_overhead(self) -> None:
        for table in ("CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD"):
            start, end, thread, name = self._rows(table, "start", "end", "globalTid", "nameId")
            self._add(start, end, kind=Kind.OVERHEAD, name=self._names(name), track=self._threads(thread))

    def _read_diagnostics(self) -> None:
        """What Nsight Systems itself warned of while it recorded: events that were not collected, and the like."""
        if not {"text", "severity"} <= self._columns.get("DIAGNOSTIC_EVENT", set()):
            return
        said = "SELECT text, COUNT(*) FROM DIAGNOSTIC_EVENT WHERE severity IN (2, 3) GROUP BY text ORDER BY MIN(rowid)"
        for text, count in self._database.execute(f"{said} LIMIT {_MOST_WARNINGS}"):
            first = " ".join(str(text).split())[:200]
            self._builder.losses.append(Loss(f"Nsight Systems warns: {first}", count=count))

    def _read_samples(self) -> None:
        """Sampled stacks that have Python frames in them; only those frames are kept."""
        if not {"COMPOSITE_EVENTS", "SAMPLING_CALLCHAINS"} <= self._columns.keys():
            return
        taken: dict[int, tuple[int, int]] = {
            number: (start, thread)
            for number, start, thread in self._rows("COMPOSITE_EVENTS", "id", "start", "globalTid").T.tolist()
        }
        rows = [(*taken[number], frame) for number, frame in self._python_stacks() if frame != NONE and number in taken]
        if not rows:
            return
        time, thread, frame = np.array(sorted(rows), np.int64).T
        gaps = np.diff(np.unique(time))
        weight = int(np.median(gaps)) if len(gaps) else 0
        self._builder.add_table(
            "samples",
            Samples.of(
                time_ns=time + self._shift_ns,
                track=self._threads(thread),
                frame=frame,
                weight_ns=np.full(len(time), weight),
            ),
        )

    def _python_stacks(self) -> Iterator[tuple[int, int]]:
        """(number of the sample, leaf frame)."""
        order = "SELECT id, symbol, module FROM SAMPLING_CALLCHAINS ORDER BY id, stackDepth DESC"
        for number, chain in groupby(self._database.execute(order), key=lambda row: row[0]):
            frame = NONE
            for _, symbol, module in chain:
                file, line = python_file(self._strings.get(module, ""))
                if file:
                    frame = self._builder.frame(file, line, self._strings.get(symbol, ""), frame)
            yield number, frame
