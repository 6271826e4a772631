"""How Nsight Systems names things, and how torch.profiler does: we follow torch.profiler."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tracer.trace import NONE

_COPIES = ("Unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
_MEMORY = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static")
_SYNCS = ("Unknown Sync", "Event Sync", "Stream Wait Event", "Stream Sync", "Context Sync")
_RANGE = re.compile(
    r"(.+?)(?:, seq = (\d{1,18}))?(?:, op_id = \d+)?(?:, sizes = (.*?))?(?:, input_op_ids = .*)?", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Range:
    """An NVTX range; torch's emitter adds to an operator's name what it knows of it."""

    name: str
    is_op: bool = False
    sequence: int = NONE
    shapes: str = ""


def call_name(text: str) -> str:
    """cudaLaunchKernel from `cudaLaunchKernel_v7000`."""
    return re.sub(r"_v\d+(_ptsz|_ptds)?$", "", text)


def copy_name(copy: int, source: int, target: int) -> str:
    """`Memcpy HtoD (Pageable -> Device)`."""
    return f"Memcpy {_word(_COPIES, copy)} ({_word(_MEMORY, source)} -> {_word(_MEMORY, target)})"


def sync_name(kind: int) -> str:
    """`Stream Sync`."""
    return _word(_SYNCS, kind)


def split_range(text: str) -> Range:
    """`aten::mm, seq = 12, op_id = 34, sizes = [[2, 3], [3, 4]]` is an operator; other texts are the user's."""
    found = _RANGE.fullmatch(text)
    if not found or found.end(1) == found.end():
        return Range(text)
    return Range(found[1], True, int(found[2]) if found[2] else NONE, found[3] or "")


def python_file(module: str) -> tuple[str, int]:
    """`train.py:12` or `train.py` as file and line; nothing for a library."""
    found = re.fullmatch(r"(.*\.py)(?::(\d{1,9}))?", module)
    return (found[1], int(found[2] or NONE)) if found else ("", NONE)


def _word(words: tuple[str, ...], at: int) -> str:
    return words[at] if 0 <= at < len(words) else "Unknown"
