"""Clocks by their own names, whatever a file calls them: `from time import perf_counter as now`, `import time as t`."""

from __future__ import annotations

import ast
from collections.abc import Collection

_MODULES = ("time", "timeit")


def with_plain_clocks(tree: ast.Module, clocks: Collection[str]) -> ast.Module:
    """The same tree with each call of one of these clocks written as `time.NAME()`; changed in place."""
    modules: set[str] = set()
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname for alias in node.names if alias.name in _MODULES and alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module in _MODULES and not node.level:
            names |= {alias.asname or alias.name: alias.name for alias in node.names if alias.name in clocks}
    for node in ast.walk(tree) if modules or names else ():
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id in names:
            module = ast.copy_location(ast.Name("time", ast.Load()), called)
            node.func = ast.copy_location(ast.Attribute(module, names[called.id], ast.Load()), called)
        elif isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id in modules:
            called.value.id = "time"
    return tree
