"""`tracer bench config.yaml`: makes functions of a config's candidates and measures them."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracer.config import Bench
from tracer.errors import UsageError
from tracer.recording.bench import bench
from tracer.results import Benchmark

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def run_bench(config: Bench, base: str) -> Benchmark:
    """Run the setup, then measure. Modules are looked for beside the config first.

    Raises UsageError for a candidate that is no statement and no function. What the
    user's own code raises comes through unchanged.
    """
    sys.path.insert(0, base or str(Path.cwd()))
    space: dict[str, Any] = {"__name__": "__bench__"}
    exec(_compile(config.setup, "bench.setup", "exec"), space)
    functions = {name: _function(name, text, space, config.rotate) for name, text in config.candidates.items()}
    return bench(
        candidates=functions,
        device=config.device,
        confidence=config.confidence,
        precision=config.precision,
        rotate=_inputs(config.rotate, space),
        flush=config.flush,
        max_seconds=config.max_seconds,
    )


def _function(name: str, text: str, space: dict[str, Any], rotate: str | None) -> Callable[..., Any]:
    if _FUNCTION.fullmatch(text.strip()):
        return _imported(name, text.strip())
    # As the body of a function, so that its names are as fast as in the user's program.
    body = "\n".join(f"    {line}" for line in text.strip().splitlines())
    text = f"def candidate({'x' if rotate else ''}):\n{body}\n"
    made: dict[str, Any] = {}
    exec(_compile(text, f"bench.candidates.{name}", "exec"), space, made)
    return made["candidate"]  # type: ignore[no-any-return]


def _imported(name: str, text: str) -> Callable[..., Any]:
    module, _, function = text.partition(":")
    try:
        return getattr(importlib.import_module(module), function)  # type: ignore[no-any-return]
    except (ImportError, AttributeError) as error:
        raise UsageError(f"bench.candidates.{name}: {text} cannot be imported", why=str(error)) from error


def _inputs(rotate: str | None, space: dict[str, Any]) -> Any:
    if rotate is None:
        return None
    if rotate not in space:
        raise UsageError(f"bench.rotate names {rotate!r}, which bench.setup does not make", fix=f"{rotate} = [...]")
    return space[rotate]


def _compile(text: str, where: str, mode: str) -> Any:
    try:
        return compile(text, f"<{where}>", mode)
    except SyntaxError as error:
        raise UsageError(f"{where} is not Python", why=f"{error.msg}, line {error.lineno}") from error
