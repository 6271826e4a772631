"""Writes Kineto JSON from events given in nanoseconds, in every layout that exporters use."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

BASE_NS = 1_790_000_000_000_000_000
PID = 100


def us(ns: int, decimals: str = "three") -> str:
    """Microseconds as Kineto writes them: with three decimals, or as few as needed."""
    whole, rest = divmod(abs(ns), 1000)
    sign = "-" if ns < 0 else ""
    if decimals == "few":
        return f"{sign}{whole}" + (f".{rest:03d}".rstrip("0") if rest else "")
    return f"{sign}{whole}.{rest:03d}"


def event(
    cat: str,
    name: str,
    start_ns: int,
    dur_ns: int,
    *,
    pid: Any = PID,
    tid: Any = PID,
    ph: str = "X",
    **args: Any,
) -> dict[str, Any]:
    """One event; stamps stay nanoseconds until they are written."""
    return {"ph": ph, "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": start_ns, "dur": dur_ns, "args": args}


def kernel(name: str, start_ns: int, dur_ns: int, corr: int, *, device: int = 0, stream: int = 7, **args: Any) -> Any:
    """A kernel row."""
    own = {"device": device, "context": 1, "stream": stream, "correlation": corr} | args
    return event("kernel", name, start_ns, dur_ns, pid=device, tid=stream, **own)


def call(name: str, start_ns: int, dur_ns: int, corr: int, *, pid: int = PID, tid: int = PID) -> Any:
    """A runtime call."""
    return event("cuda_runtime", name, start_ns, dur_ns, pid=pid, tid=tid, cbid=1, correlation=corr)


def label(what: str, *, pid: Any = PID, tid: Any = PID, **args: Any) -> dict[str, Any]:
    """A name or label of a row: `label("thread_name", tid=7, name="stream 7")`."""
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": args}


def write_event(found: dict[str, Any], decimals: str = "three", stamps: str = "number") -> str:
    """One event's text."""
    quote = '"' if stamps == "text" else ""
    own = {key: value for key, value in found.items() if key not in ("ts", "dur", "args")}
    text = json.dumps(own, ensure_ascii=False)[:-1]
    for key in ("ts", "dur"):
        if found.get(key) is not None:
            text += f', "{key}": {quote}{us(found[key], decimals)}{quote}'
    if found.get("args"):
        text += f', "args": {json.dumps(found["args"], ensure_ascii=False)}'
    return text + "}"


def write(
    events: Sequence[dict[str, Any]],
    *,
    layout: str = "lines",  # "lines", "one line", "kineto", "crlf"
    base: str = "before",  # "before", "after", "absent"
    decimals: str = "three",
    stamps: str = "number",
    bare: bool = False,
    **keys: Any,
) -> bytes:
    """A whole file."""
    texts = [write_event(found, decimals, stamps) for found in events]
    if layout == "kineto":
        texts = [
            text.replace(', "ts"', ',\n    "ts"').replace(', "args": {', ',\n    "args": {\n      ') for text in texts
        ]
    between = ", " if layout == "one line" else ",\n  "
    body = "[" + between.join(texts) + "]"
    if not bare:
        head = {"schemaVersion": 1} | keys
        tail: dict[str, Any] = {"traceName": "made.json"}
        if base == "before":
            head["baseTimeNanoseconds"] = BASE_NS
        elif base == "after":
            tail["baseTimeNanoseconds"] = BASE_NS
        body = json.dumps(head)[:-1] + ', "traceEvents": ' + body + ", " + json.dumps(tail)[1:]
    if layout == "crlf":
        body = body.replace("\n", "\r\n").replace(", ", ",\r\n")
    return body.encode()
