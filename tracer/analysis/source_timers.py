"""Finds timers in source text: which clock reads are subtracted, and whether something waits for the GPU in between.

Works on the syntax tree alone, runs nothing, and is conservative. What a call does is
told by `source_calls`, the order of things by `source_scope`, what timers see by `open_timers`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tracer.analysis.clock_names import with_plain_clocks
from tracer.analysis.open_timers import SourceTimer
from tracer.analysis.source_calls import CLOCKS, Calls, Function, Read, is_clock, read_of
from tracer.analysis.source_scope import Scope
from tracer.analysis.source_shapes import called


def find_timers(tree: ast.Module) -> list[SourceTimer]:
    """All timers of a file, in the order of their ends; one for each pair of places, the worst of its uses."""
    with_plain_clocks(tree, CLOCKS)
    if not any(map(_times, ast.walk(tree))):
        return []
    calls = Calls(tree)
    found: dict[tuple[Read, Read], SourceTimer] = {}
    module = Scope("<module>", calls, set())  # it comes first, and its functions see its names
    timers = module.follow(tree.body)
    for scope, body in _scopes(tree, calls, module.names.tensors):
        timers += scope.follow(body)
    for timer in timers:
        place = timer.start, timer.end
        found[place] = _worse(found[place], timer) if place in found else timer
    return sorted(found.values(), key=lambda timer: (timer.end.line, timer.start.line))


@dataclass(frozen=True, slots=True)
class Pair:
    """Two places of which the text subtracts what a clock said; no start for a deadline, which measures nothing."""

    start: Read | None
    end: Read
    kept: str  # the name that holds the start: of several starts with one name, the latest counts
    collected: bool = False
    events: bool = False  # of CUDA events: the end is where the time between them is asked for


def find_pairs(tree: ast.Module) -> list[Pair]:
    """The places of all timers that the text subtracts, those kept in attributes between methods too."""
    pairs = [
        Pair(None if timer.deadline else timer.start, timer.end, timer.kept, timer.collected, timer.events)
        for timer in find_timers(tree)
    ]
    kept: dict[str, list[Read]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and is_clock(node.value):
            for target in node.targets:
                if isinstance(target, ast.Attribute):
                    kept.setdefault(target.attr, []).append(read_of(node.value))
    seen = {pair.end for pair in pairs}
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and isinstance(node.right, ast.Attribute):
            end = read_of(node.left) if isinstance(node.left, ast.Call) and is_clock(node.left) else None
            if end is not None and end not in seen:
                name = node.right.attr
                pairs += [Pair(start, end, name, True) for start in kept.get(name, ())]
    return pairs


def _times(node: ast.AST) -> bool:
    return is_clock(node) or (isinstance(node, ast.Call) and called(node) in ("elapsed_time", "timeit", "repeat"))


def _worse(one: SourceTimer, other: SourceTimer) -> SourceTimer:
    return replace(
        one,
        launches=one.launches + other.launches,
        waited=one.waited and other.waited,
        clean_start=one.clean_start and other.clean_start,
    )


def _scopes(tree: ast.Module, calls: Calls, tensors: set[str]) -> Iterator[tuple[Scope, list[ast.stmt]]]:
    """Each function, with its statements; `tensors` are names of the module that hold some."""
    waiting: dict[ast.AST, frozenset[str]] = {}
    owners: dict[ast.AST, ast.ClassDef] = {}
    for node in ast.walk(tree):  # the outer ones come first
        mine = waiting.get(node, frozenset())
        if isinstance(node, Function):
            if node.name in calls.given_waits:
                mine |= {argument.arg for argument in [*node.args.args, *node.args.kwonlyargs]}
            words = set(node.name.lower().split("_"))
            if "cpu" not in words or words & {"gpu", "cuda"}:
                yield Scope(node.name, calls, tensors, mine, owners.get(node)), node.body
        elif isinstance(node, ast.ClassDef):
            owners |= dict.fromkeys(node.body, node)
        waiting |= dict.fromkeys(ast.iter_child_nodes(node), mine)
