"""A file of Python text as the static rules see it: its timers, and whether it makes every launch wait."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from tracer.analysis.open_timers import SourceTimer
from tracer.analysis.source_calls import Read
from tracer.analysis.source_timers import find_timers


@dataclass(frozen=True, slots=True)
class Source:
    """A file of Python text that may use CUDA, and its timers."""

    file: str
    text: str
    timers: tuple[SourceTimer, ...]
    blocking: tuple[Read, ...]  # where it switches CUDA_LAUNCH_BLOCKING on for itself

    @property
    def unwaited_ends(self) -> set[Read]:
        """Where a timer ends that does not wait: the next one, if it starts there, pays for its work."""
        return {timer.end for timer in self.timers if timer.stopped_early}


def read_source(file: str, text: str) -> Source | None:
    """Look through one file; None if it has nothing to do with a GPU.

    Raises SyntaxError or ValueError (null bytes) for text that is not Python, and RecursionError
    or MemoryError for what is nested too deep, as generated code can be.
    """
    tree = ast.parse(text)
    if not uses_cuda(tree):
        return None
    return Source(file, text, tuple(find_timers(tree)), tuple(find_blocking_switch(tree)))


def read_any(file: str, text: str) -> Source | None:
    """The same for text that came with a trace: None, too, for what cannot be read as Python of this version."""
    try:
        return read_source(file, text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def uses_cuda(tree: ast.AST) -> bool:
    """Whether a file imports torch (or triton, cupy) and speaks of a GPU."""
    imports = False
    speaks = False
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports |= any(alias.name.split(".")[0] in ("torch", "triton", "cupy") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imports |= (node.module or "").split(".")[0] in ("torch", "triton", "cupy")
        elif isinstance(node, ast.Attribute):
            speaks |= node.attr in ("cuda", "device")
        elif isinstance(node, ast.keyword):
            speaks |= node.arg == "device"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            speaks |= node.value.startswith("cuda")
    return imports and speaks


def find_blocking_switch(tree: ast.AST) -> list[Read]:
    """Where a program switches CUDA_LAUNCH_BLOCKING on for itself, whatever its options say."""
    found = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "debug" in ast.unparse(node.test).lower():
            continue
        if isinstance(node, ast.Assign | ast.Expr) and _switches(node):
            found.append(Read(node.lineno, node.col_offset + 1, (node.end_col_offset or 0) + 1, ""))
        else:
            found += find_blocking_switch(node)
    return found


def _switches(node: ast.Assign | ast.Expr) -> bool:
    """`os.environ[NAME] = "1"`, `os.environ.setdefault(NAME, "1")` and their like, not for another program."""
    if isinstance(node, ast.Assign):
        target = node.targets[0]
        texts = _texts(target) | _texts(node.value)
        written = ast.unparse(target.value) if isinstance(target, ast.Subscript) else ""
    else:
        call = node.value
        texts = _texts(call)
        written = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
    return (
        "CUDA_LAUNCH_BLOCKING" in texts
        and "1" in texts
        and ("environ" in written or "putenv" in written or "setenv" in written)
    )


def _texts(node: ast.AST) -> set[str]:
    constants = {str(n.value) for n in ast.walk(node) if isinstance(n, ast.Constant)}
    return constants | {str(n.arg) for n in ast.walk(node) if isinstance(n, ast.keyword)}
