"""Shapes of source text that timers are written in."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tracer.analysis.source_calls import called


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
