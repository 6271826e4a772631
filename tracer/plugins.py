"""Finds the modules of a package: a rule, a reader, a format or a command is a file, and there is no list to edit."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def names_in(package: str) -> list[str]:
    """The public module names directly inside `package`, sorted, without importing them."""
    paths = importlib.import_module(package).__path__
    return sorted(found.name for found in pkgutil.iter_modules(paths) if not found.name.startswith("_"))


def modules_in(package: str) -> list[ModuleType]:
    """Those modules, imported."""
    return [importlib.import_module(f"{package}.{name}") for name in names_in(package)]
