"""What we use of an event's `args`: a type for each kind of event, so that only its fields are decoded."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from tracer.readers._events import NOTHING, Raw
from tracer.trace import NONE

Number = int | float | str | None
_T = TypeVar("_T", bound=msgspec.Struct)


class CallArgs(msgspec.Struct, gc=False):
    """What we use of a call's `args`."""

    correlation: Number = NONE


class OpArgs(
    msgspec.Struct,
    gc=False,
    rename={
        "external": "External id",
        "sequence": "Sequence number",
        "forward": "Fwd thread id",
        "dims": "Input Dims",
    },
):
    """Of an operator's."""

    external: Number = 0
    sequence: Number = NONE
    forward: Number = NONE
    dims: Raw = NOTHING


class NestingArgs(msgspec.Struct, gc=False, rename={"external": "External id", "python": "Python id"}):
    """Of an annotation's or Python function's: ids count up in the order of starts."""

    external: Number = 0
    python: Number = 0


class PlaceArgs(msgspec.Struct, gc=False):
    """Of a row on a device that is not work."""

    device: Number = None
    stream: Number = None


class WorkArgs(
    msgspec.Struct,
    gc=False,
    rename={
        "graph_node": "graph node id",
        "collective": "Collective name",
        "group": "Process Group Name",
        "seq": "Seq",
        "elements": "In msg nelems",
        "to_device": "toDevice",
    },
):
    """Of a kernel's, copy's or fill's."""

    device: Number = None
    stream: Number = None
    correlation: Number = NONE
    bytes: Number = NONE
    grid: Raw = NOTHING
    block: Raw = NOTHING
    graph_node: Number = NONE
    to_device: Number = NONE
    collective: str | None = None
    group: Number = None
    seq: Number = NONE
    elements: Number = NONE
    dtype: str | None = None


class WaitArgs(
    msgspec.Struct,
    gc=False,
    rename={"wait_stream": "wait_on_stream", "wait_corr": "wait_on_cuda_event_record_corr_id"},
):
    """Of a synchronisation record's."""

    wait_stream: Number = NONE
    wait_corr: Number = NONE
    stream: Number = NONE
    correlation: Number = NONE
    device: Number = None


class LabelArgs(msgspec.Struct, gc=False):
    """Of a label's."""

    name: Number = None
    labels: Number = None


class MemoryArgs(
    msgspec.Struct,
    gc=False,
    rename={
        "allocated": "Total Allocated",
        "reserved": "Total Reserved",
        "device_id": "Device Id",
        "device_type": "Device Type",
    },
):
    """Of an allocation's."""

    allocated: Number = None
    reserved: Number = None
    device_id: Number = None
    device_type: Number = None


def decode_args(raws: list[Raw], kind: type[_T]) -> list[_T]:
    """The `args` of many events, as one type."""
    text = b"[" + b",".join(raws) + b"]"
    try:
        return msgspec.json.decode(text, type=list[kind])  # type: ignore[valid-type]
    except (msgspec.DecodeError, RecursionError):
        return [_args_loosely(raw, kind) for raw in raws]


def _args_loosely(raw: Raw, kind: type[_T]) -> _T:
    """One event's `args`; a field of another type than expected is left out, the others are kept."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, RecursionError):
        pass
    args = kind()
    try:
        fields = msgspec.json.decode(bytes(raw).decode("utf-8", "replace"), type=dict[str, Raw])
    except (msgspec.DecodeError, RecursionError):
        return args
    for name, key in zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True):
        try:
            setattr(
                args,
                name,
                getattr(msgspec.json.decode(b'{"%s":%s}' % (key.encode(), bytes(fields[key])), type=kind), name),
            )
        except (KeyError, msgspec.DecodeError, RecursionError):
            continue
    return args
