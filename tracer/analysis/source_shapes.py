"""Shapes of source text that timers are written in."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def called(node: ast.Call) -> str:
    """The last part of a call's name; '' if it has none, as in `kernels[n](x)`."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def is_rest(node: ast.AST) -> bool:
    """`period - (clock() - start)`: how long there is left."""
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Sub)
        and isinstance(node.right, ast.BinOp)
        and isinstance(node.right.op, ast.Sub)
    )


def yields(node: ast.AST) -> bool:
    """A `yield` that stands by itself, as in a context manager."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield)


def differenced(tree: ast.AST) -> Iterator[str]:
    """Lists whose neighbours are subtracted: `zip(t, t[1:])`, `np.diff(t)`, `t[1] - t[0]`."""
    for node in ast.walk(tree):
        pair: list[ast.expr] = []
        if isinstance(node, ast.Call) and called(node) in ("zip", "diff", "pairwise"):
            pair = node.args
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            pair = [node.left, node.right] if isinstance(node.left, ast.Subscript) else []
        bases = {ast.unparse(side.value if isinstance(side, ast.Subscript) else side) for side in pair}
        if len(bases) == 1:
            yield from bases


def proof_lists(tree: ast.AST) -> set[str]:
    """Lists of which a cold first value is no matter: cut at their start, or asked for their median or least."""
    cut: set[str] = set()
    ranked: set[str] = set()
    summed: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and node.slice.lower is not None:
            cut.add(ast.unparse(node.value))
        elif isinstance(node, ast.Call) and node.args:
            words, of = set(called(node).split("_")), ast.unparse(node.args[0])
            if words & {"median", "min", "sorted", "quantile", "percentile"}:
                ranked.add(of)
            elif words & {"sum", "mean", "fmean", "average", "max"}:
                summed.add(of)
    return cut | (ranked - summed)


def gathered_names(body: list[ast.stmt], proof: set[str]) -> Iterator[str]:
    """Names whose values are always added to others, the first one too: `times.append(took)`, `total += took`."""
    for statement in body:
        if isinstance(statement, ast.AugAssign) and isinstance(statement.value, ast.Name):
            yield statement.value.id
        elif isinstance(statement, ast.Expr) and isinstance(call := statement.value, ast.Call):
            kept = called(call) == "append" and isinstance(call.func, ast.Attribute)
            if kept and isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) not in proof:
                yield from (argument.id for argument in call.args if isinstance(argument, ast.Name))
        elif not isinstance(statement, ast.If):  # `if turn >= warm_up: times.append(took)`
            yield from gathered_names(getattr(statement, "body", []), proof)
