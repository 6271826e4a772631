"""Python functions that the profiler recorded, as places: the last resort, since they know only a def line."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from tracer.analysis.lookup import Lookup
from tracer.analysis.sources import CALLS_OF_OP, Sources
from tracer.results import Place
from tracer.trace import NONE, Ids, Ints, Kind, Trace

_PYTHON_NAME = re.compile(r"^(?P<file>.+?)\((?P<line>\d+)\): (?P<function>.+)$", re.DOTALL)
_BUILTIN_NAME = re.compile(r"^<(?:built-in method|built-in function|method|slot wrapper) '?(?P<name>\w+)")


class PythonFrames:
    """Chains of recorded functions; equal chains share a number, so that a loop is resolved once."""

    def __init__(self, trace: Trace, sources: Sources) -> None:
        self._trace = trace
        self._sources = sources
        self._chains: dict[tuple[int, int], int] = {}
        self._links: list[tuple[int, int]] = []  # (name, chain of the caller)
        self._of_span: dict[int, int] = {}
        self._rows = np.flatnonzero(trace.spans.kind == Kind.PYTHON)
        self.any = len(self._rows) > 0
        self._began = Lookup(trace.spans.track[self._rows], trace.spans.start_ns[self._rows], self._rows)

    def chain_of(self, row: int) -> int:
        """The number of the chain of functions around a span, NONE without any."""
        waiting = []
        at = self._function_at(row)
        while at != NONE and at not in self._of_span:
            waiting.append(at)
            at = self._function_at(int(self._trace.spans.parent[at]))
        chain = self._of_span[at] if at != NONE else NONE
        for function in reversed(waiting):
            chain = self._of_span[function] = self._intern(int(self._trace.spans.name[function]), chain)
        return chain

    def chain_at(self, track: int, time_ns: int) -> int:
        """The number of the chain that a thread was in at a time, NONE without any."""
        if not self.any:
            return NONE
        spans = self._trace.spans
        at = int(self._began.last_until([track], [time_ns])[0])
        while at != NONE and (spans.kind[at] != Kind.PYTHON or spans.start_ns[at] + spans.dur_ns[at] <= time_ns):
            at = int(spans.parent[at])
        return NONE if at == NONE else self.chain_of(at)

    def _function_at(self, row: int) -> int:
        spans = self._trace.spans
        while row != NONE and spans.kind[row] != Kind.PYTHON:
            row = int(spans.parent[row])
        return row

    def _intern(self, name: int, caller: int) -> int:
        key = (name, caller)
        if key not in self._chains:
            self._chains[key] = len(self._links)
            self._links.append(key)
        return self._chains[key]

    def stack(self, chain: int, wanted: frozenset[str]) -> Iterator[Place]:
        """Places of a chain, innermost first; `wanted` is how the call at its end is written."""
        while chain != NONE:
            name, chain = self._links[chain]
            text = self._trace.names[name]
            builtin = _BUILTIN_NAME.match(text)
            if builtin:
                wanted = frozenset({builtin["name"]})
                continue
            place = self._place(text, wanted)
            if place:
                yield place
                # Further out, the call is that of this function.
                wanted = frozenset({place.function.rpartition(".")[2]})

    def _place(self, text: str, wanted: frozenset[str]) -> Place | None:
        """A function's def line, unless its text shows that only the calls of one line can be meant."""
        match = _PYTHON_NAME.match(text)
        if not match:
            return None
        file, line, function = match["file"], int(match["line"]), match["function"]
        found = self._sources.candidates(file, line, function, wanted) if wanted else []
        if len({at for at, _ in found}) == 1:
            at, columns = found[0] if len(found) == 1 else (found[0][0], None)
            return Place(file, at, function, columns, "source", True, self._sources.line(file, at))
        return Place(file, line, function, None, "events", False, self._sources.line(file, line))


def outermost_operators(trace: Trace, rows: Ints) -> Ids:
    """For each span the name of the outermost operator around it below Python, or NONE."""
    spans = trace.spans
    name, at = np.full(len(rows), NONE, np.int32), rows.copy()
    going = np.arange(len(rows))
    while len(going):
        going = going[spans.kind[at[going]] != Kind.PYTHON]
        here = at[going]
        operator = spans.kind[here] == Kind.OP
        name[going[operator]] = spans.name[here[operator]]
        at[going] = spans.parent[here]
        going = going[at[going] != NONE]
    return name


def written_as(trace: Trace, operator: int) -> frozenset[str]:
    """How the call of an operator may be written."""
    if operator == NONE:
        return frozenset()
    name = trace.names[operator]
    return CALLS_OF_OP.get(name, frozenset({name.removeprefix("aten::")}))
