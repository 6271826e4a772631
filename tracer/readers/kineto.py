"""Reads the Chrome JSON that torch.profiler writes.

Time stamps are microseconds in decimal. They are cut from the text where a double
does not hold them, since it holds an epoch time of today only to a quarter of a microsecond.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tracer.building import TraceBuilder
from tracer.errors import TraceError
from tracer.readers import _events
from tracer.readers._columns import EventColumns
from tracer.readers._hits import add_hits
from tracer.trace import Trace


def accepts(path: Path, head: bytes) -> bool:
    """Whether this looks like JSON, plain or compressed."""
    return head[:2] == b"\x1f\x8b" or head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")


def load(path: Path) -> Trace:
    """The trace in one file."""
    builder = TraceBuilder()
    read(path, builder)
    builder.start_at_first()
    return builder.build()


def read(
    path: Path,
    builder: TraceBuilder,
    rank: int | None = None,
    *,
    threads: Mapping[int, int] | None = None,
    names: Mapping[int, str] | None = None,
) -> None:
    """Add one file's events to a trace.

    `threads` turns the numbers that torch gives to threads without operators into
    those of the system; `names` are better names for threads.
    """
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    try:
        top = msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"), type=dict[str, msgspec.Raw])
        raw = top.pop("traceEvents")
    except (msgspec.DecodeError, KeyError) as error:
        raise TraceError(f"{path} is not a trace of torch.profiler", why=str(error)) from error
    columns = EventColumns(builder, threads or {}, names or {})
    events = _events._as_events(raw)
    ts_ns = dur_ns = None
    if not _events.stamps_are_exact([e.ts for e in events]):
        texts = _events._as_text_events(raw)
        ts_ns = _events.ns_of_texts([e.ts for e in texts])
        dur_ns = _events.ns_of_texts([e.dur for e in texts])
    columns.add(events, ts_ns, dur_ns)
    keys: dict[str, Any] = {key: msgspec.json.decode(value) for key, value in top.items()}
    rank = add_meta(builder, keys, path, rank)
    columns.finish(rank, _events.integer(keys.get("baseTimeNanoseconds", 0)))
    hits = path.with_name(re.sub(r"\.json(\.gz)?$", ".hits.json", path.name))
    if hits != path and hits.exists():
        add_hits(hits, builder, rank)


def add_meta(builder: TraceBuilder, keys: dict[str, Any], path: Path, rank: int | None) -> int:
    """What the file says about itself; the rank it is of."""
    info = keys.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    if rank is None:
        rank = info.get("rank") if isinstance(info.get("rank"), int) else rank_in_name(path.name)
    rank = 0 if rank is None else rank
    builder.meta.setdefault("format", "kineto")
    for key, value in keys.items():
        if isinstance(value, str | int | float):
            builder.meta.setdefault(key, str(value))
    for key in ("world_size", "backend"):
        if key in info:
            builder.meta.setdefault(key, str(info[key]))
    devices = keys.get("deviceProperties")
    for device in devices if isinstance(devices, list) else []:
        if isinstance(device, dict) and "id" in device:
            builder.meta[f"device.{rank}.{device['id']}"] = str(device.get("name", ""))
    return rank


def rank_in_name(name: str) -> int | None:
    """3 from rank3.json, rank-3.x.pt.trace.json, worker3_step_12.json; None without such a word."""
    found = re.search(r"(?:rank|worker)[-_]?(\d{1,6})", name)
    return int(found[1]) if found else None
