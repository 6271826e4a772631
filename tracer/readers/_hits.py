"""Reads the synchronisations that torch reported while a trace was recorded: the sidecar `NAME.hits.json`.

`hits` are [unix ns of the end of the wait, file, line, index into stacks]; `stacks` are
whole Python stacks, the innermost frame first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tracer.building import TraceBuilder
from tracer.trace import NONE, Ledger, Loss


class _Hits(msgspec.Struct):
    hits: list[tuple[int, str, int, int | None]]
    stacks: list[list[tuple[str, int, str]]] = []


def add_hits(path: Path, builder: TraceBuilder, rank: int) -> None:
    """The hits as a ledger on a thread without number: the sidecar does not name one."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Hits)
    except (msgspec.DecodeError, RecursionError) as error:
        builder.losses.append(Loss(f"{path.name}: {error}"))
        return
    if not found.hits:
        return
    track = builder.track(rank, NONE, NONE, NONE, "thread unknown")
    what = builder.name("sync")
    rows: list[dict[str, Any]] = []
    for end_ns, file, line, stack in found.hits:
        frame = NONE
        whole = found.stacks[stack] if stack is not None and 0 <= stack < len(found.stacks) else [(file, line, "")]
        for frame_file, frame_line, function in reversed(whole):
            frame = builder.frame(frame_file, frame_line, function, frame)
        rows.append({"start_ns": NONE, "end_ns": end_ns, "track": track, "frame": frame, "what": what})
    builder.add_table("ledger", Ledger.of(**{key: np.array([row[key] for row in rows]) for key in rows[0]}))
