"""Clocks by their own names, whatever a file calls them: `from time import perf_counter as now`, `import time as t`."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

_MODULES = ("time", "timeit")


def with_plain_clocks(tree: ast.Module, clocks: Collection[str]) -> ast.Module:
    """The same tree with each call of one of these clocks written as `time.NAME()`; changed in place."""
    wanted = {*clocks, "timeit", "repeat"}
    modules: set[str] = set()
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname for alias in node.names if alias.name in _MODULES and alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module in _MODULES and not node.level:
            names |= {alias.asname or alias.name: alias.name for alias in node.names if alias.name in wanted}
    for name, value in _given_names(tree):
        owner = value.value if isinstance(value, ast.Attribute) and value.attr in clocks else None
        if isinstance(value, ast.Attribute) and isinstance(owner, ast.Name) and owner.id in {*_MODULES, *modules}:
            names[name] = value.attr
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


def _given_names(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Names that are given a value: `clock = time.perf_counter`, or an argument's default."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.arguments):
            places = [*node.posonlyargs, *node.args]
            defaults = [None] * (len(places) - len(node.defaults)) + [*node.defaults, *node.kw_defaults]
            for argument, default in zip([*places, *node.kwonlyargs], defaults, strict=True):
                if default is not None:
                    yield argument.arg, default
