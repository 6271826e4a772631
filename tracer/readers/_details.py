"""What only some rows have, in tables beside the spans: operators, GPU work, synchronisations, collectives."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tracer.building import TraceBuilder
from tracer.readers import _args
from tracer.readers._args import decode_args
from tracer.readers._events import NOTHING, Raw
from tracer.readers._growing import GrowingColumns, Ids32
from tracer.readers._stamps import integer, integers
from tracer.trace import NONE, Collectives, Ids, Ints, OpDetails, Table, WaitDetails, WorkDetails

_TABLES: dict[str, tuple[type[Table], dict[str, Any]]] = {
    "ops": (OpDetails, {"span": np.int32, "sequence": np.int64, "forward_lane": np.int64, "shapes": np.int32}),
    "work": (
        WorkDetails,
        {"span": np.int32, "grid": np.int32, "block": np.int32, "graph_node": np.int64, "peer": np.int32},
    ),
    "waits": (
        WaitDetails,
        {"span": np.int32, "stream": np.int64, "source_stream": np.int64, "source_corr": np.int64, "device": np.int32},
    ),
    "collectives": (
        Collectives,
        {"span": np.int32, "name": np.int32, "group": np.int32, "sequence": np.int64, "nbytes": np.int64},
    ),
}
_DTYPE_BYTES = {"double": 8, "float": 4, "int": 4, "long": 8, "half": 2, "bfloat16": 2, "bool": 1, "byte": 1, "char": 1}


class DetailColumns:
    """Collects the tables of one file."""

    def __init__(self, builder: TraceBuilder, names: Ids32) -> None:
        self._builder = builder
        self._names = names
        self._texts = Ids32(lambda text: _short_id(builder, text))
        self._tables = {attribute: GrowingColumns(**types) for attribute, (_, types) in _TABLES.items()}

    def give(self, first: int) -> None:
        """Give the tables to the builder; `first` is the row of the file's first span."""
        for attribute, (table, _) in _TABLES.items():
            columns = self._tables[attribute].take()
            if len(columns["span"]):
                columns["span"] += np.int32(first)
                self._builder.add_table(attribute, table(**columns))

    def add_ops(self, spans: Ids, raws: list[Raw]) -> Ints:
        """What operators say, those that say nothing get no row; their ids, which count up in the order of starts."""
        args = decode_args(raws, _args.OpArgs)
        sequence = integers([a.sequence for a in args])
        forward = integers([a.forward for a in args])
        shapes = self._texts_of([a.dims for a in args])
        said = (sequence != NONE) | (forward != NONE) | (shapes != NONE)
        if not said.all():
            spans, sequence, forward, shapes = spans[said], sequence[said], forward[said], shapes[said]
        columns = {"span": spans, "sequence": sequence, "forward_lane": forward, "shapes": shapes}
        self._tables["ops"].append(**columns)
        return integers([a.external for a in args])

    def add_waits(self, spans: Ids, events: list[Any], raws: list[Raw]) -> Ints:
        """What synchronisation records say; their correlation ids."""
        args = decode_args(raws, _args.WaitArgs)
        device = integers([e.pid if a.device is None else a.device for e, a in zip(events, args, strict=True)])
        columns = {
            "span": spans,
            "stream": integers([a.stream for a in args]),
            "source_stream": integers([a.wait_stream for a in args]),
            "source_corr": integers([a.wait_corr for a in args]),
            "device": _small(device),
        }
        self._tables["waits"].append(**columns)
        return integers([a.correlation for a in args])

    def add_work(self, spans: Ids, args: list[_args.WorkArgs]) -> None:
        """What kernels, copies and fills say; collectives say more."""
        node = integers([a.graph_node for a in args])
        node[node == 0] = NONE
        columns = {
            "span": spans,
            "grid": self._texts_of([a.grid for a in args]),
            "block": self._texts_of([a.block for a in args]),
            "graph_node": node,
            "peer": _small(integers([a.to_device for a in args])),
        }
        self._tables["work"].append(**columns)
        rows = [at for at, a in enumerate(args) if a.collective is not None]
        if rows:
            self._add_collectives(spans[rows], [args[at] for at in rows])

    def _add_collectives(self, spans: Ids, args: list[_args.WorkArgs]) -> None:
        columns = {
            "span": spans,
            "name": self._names.ids([a.collective for a in args]),
            "group": self._names.ids(["" if a.group is None else str(a.group) for a in args]),
            "sequence": integers([a.seq for a in args]),
            "nbytes": np.array([_message_bytes(a) for a in args], np.int64),
        }
        self._tables["collectives"].append(**columns)

    def _texts_of(self, raws: list[Raw]) -> Ids:
        """Ids of short texts of JSON values, many of which are not there."""
        ids = np.full(len(raws), NONE, np.int32)
        said = [at for at, raw in enumerate(raws) if raw is not NOTHING]
        if said:
            ids[said] = self._texts.ids([bytes(raws[at]) for at in said])
        return ids


def _short_id(builder: TraceBuilder, text: bytes) -> int:
    """The id of a JSON value's short form: `132x1x1` for three sizes, `[[32, 128], []]` for the rest."""
    if text in (b"", b"null"):
        return NONE
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text.decode("utf-8", "replace")
    sizes = isinstance(value, list) and len(value) == 3 and all(isinstance(size, int) for size in value)
    short = "x".join(map(str, value)) if sizes else value if isinstance(value, str) else json.dumps(value)
    return builder.name(short)


def _small(column: Ints) -> Ids:
    """Device numbers, which fit into 32 bits or are none."""
    column[(column < 0) | (column >= 2**31)] = NONE
    return column.astype(np.int32)


def _message_bytes(args: _args.WorkArgs) -> int:
    size = _DTYPE_BYTES.get(str(args.dtype).lower(), 0)
    count = integer(args.elements)
    return count * size if size and 0 <= count < 2**50 else NONE
