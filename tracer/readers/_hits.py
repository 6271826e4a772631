"""Reads the synchronisations that torch reported while a trace was recorded: the sidecar `NAME.hits.json`.

`hits` are [unix ns of the end of the wait, file, line, index into stacks]; `stacks` are
whole Python stacks, the innermost frame first. No thread is named: a hit belongs to
the thread whose synchronising call was the last to end before it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tracer.building import TraceBuilder
from tracer.trace import NONE, Ids, Ints, Kind, Ledger, Loss

_LATE_NS = 200_000_000  # a report comes when the operator returns, not when its call does
_HOST_SKEW_NS = 10_000


class _Hits(msgspec.Struct):
    hits: list[list[Any]]
    stacks: list[list[tuple[str, int, str]]] = []


def add_hits(path: Path, builder: TraceBuilder, rank: int, spans: dict[str, Any], track: Ids) -> None:
    """The hits as a ledger, on the threads of `spans`, whose stamps are unix time."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Hits)
        hits = [msgspec.convert([*hit, None][:4], tuple[int, str, int, int | None]) for hit in found.hits]
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        builder.losses.append(Loss(f"{path.name}: {error}"))
        return
    hits = [hit for hit in hits if 0 < hit[0] < 2**62 and 0 <= hit[2] < 2**31]
    if not hits:
        return
    unknown = builder.track(rank, NONE, NONE, NONE, "thread unknown")
    ends = np.array([hit[0] for hit in hits], np.int64)
    table = Ledger.of(
        start_ns=np.full(len(hits), NONE),
        end_ns=ends,
        track=_threads(ends, builder, spans, track, unknown),
        frame=[_leaf(builder, found.stacks, *hit[1:]) for hit in hits],
        what=np.full(len(hits), builder.name("sync")),
    )
    builder.add_table("ledger", table)


def _leaf(builder: TraceBuilder, stacks: list[list[tuple[str, int, str]]], file: str, line: int, at: int | None) -> int:
    frame = NONE
    whole = stacks[at] if at is not None and 0 <= at < len(stacks) else [(file, line, "")]
    for file, line, function in reversed(whole):
        frame = builder.frame(file, line, function, frame)
    return frame


def _threads(ends: Ints, builder: TraceBuilder, spans: dict[str, Any], track: Ids, unknown: int) -> Ids:
    synchronising = [at for at, name in enumerate(builder.names()) if "Synchronize" in name or "Memcpy" in name]
    calls = np.flatnonzero((spans["kind"] == Kind.CALL) & np.isin(spans["name"], synchronising))
    if not len(calls):
        return np.full(len(ends), unknown, np.int32)
    returned = spans["start_ns"][calls] + spans["dur_ns"][calls]
    order = np.argsort(returned, kind="stable")
    at = np.searchsorted(returned[order], ends + _HOST_SKEW_NS, side="right") - 1
    near = (at >= 0) & (ends - returned[order][at] < _LATE_NS)
    return np.where(near, track[calls[order[at]]], unknown).astype(np.int32)
