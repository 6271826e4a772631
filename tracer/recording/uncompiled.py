"""Has torch.compile pass our own functions by, without importing the compiler.

They run inside compiled regions too, as callbacks, and would be compiled there.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any


def pass_by(*modules: ModuleType) -> None:
    """Keep every function of these modules from being compiled. Where torch offers no way, nothing happens."""
    import torch

    frames: Any = torch._C._dynamo.eval_frame
    if not all(hasattr(frames, name) for name in ("set_code_exec_strategy", "_FrameExecStrategy", "_FrameAction")):
        return
    strategy = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
    for module in modules:
        for code in _codes_of(module):
            frames.set_code_exec_strategy(code, strategy)


def _codes_of(module: ModuleType) -> Iterator[CodeType]:
    for thing in vars(module).values():
        if getattr(thing, "__module__", None) != module.__name__:
            continue
        for inner in vars(thing).values() if isinstance(thing, type) else (thing,):
            function = getattr(inner, "__func__", inner)
            code = getattr(function, "__code__", None)
            if isinstance(code, CodeType):
                yield from _nested(code)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)
