"""The last resort for exact lines: which line called each Python function that torch.profiler saw.

Kineto's file has only the line where a function is defined. In memory, until the
profiler is let go, each call knows the line that made it. For `record.stacks: full`
where the interpreter has no line events (Python 3.11), these become runs of lines.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tracer.recording.session import Session, read_clocks
from tracer.recording.stacks import FrameTable


def write_callers(session: Session, tree: list[Any], native_thread: int) -> int:
    """Write the runs of the thread that started the profiler; how many. `tree` is `experimental_event_tree()`."""
    sink = session.sink("lines")
    frames = FrameTable.of(sink)
    mono, unix, _ = read_clocks()
    count = 0
    current, since = -1, 0

    def switch(frame: int, now: int) -> None:
        nonlocal current, since, count
        if current >= 0 and now > since:
            sink.add(["line", since - unix + mono, now - since, native_thread, current])
            count += 1
        current, since = frame, now

    for now, frame in _switches(tree, session.is_user_file, frames):
        switch(frame, now)
    return count


def _switches(tree: list[Any], is_user_file: Callable[[str], bool], frames: FrameTable) -> Iterator[tuple[int, int]]:
    """(unix ns, frame) of each moment at which the user's innermost line changes."""
    thread = _busiest_thread(tree)
    # (node, frame around it, whether it has been entered)
    waiting: list[tuple[Any, int, bool]] = [(node, -1, False) for node in reversed(tree)]
    while waiting:
        node, around, entered = waiting.pop()
        if entered:
            yield node.end_time_ns, around
            continue
        inside = around
        if _is_call(node) and node.start_tid == thread:
            caller = node.typed[1].caller
            file = _whole_path(caller.file_name)
            if is_user_file(file):
                inside = frames.frame(around, file, caller.line_number, caller.function_name)
                yield node.start_time_ns, inside
                waiting.append((node, around, True))
        waiting.extend((child, inside, False) for child in reversed(node.children))


def _busiest_thread(tree: list[Any]) -> int:
    """The profiler counts threads its own way; a bare thread's stack is a root of its own."""
    count: Counter[int] = Counter()
    waiting = [(node, node.start_tid) for node in tree if _is_call(node)]
    while waiting:
        node, root = waiting.pop()
        count[root] += 1
        waiting.extend((child, root) for child in node.children)
    return count.most_common(1)[0][0] if count else -1


@cache
def _whole_path(file: str) -> str:
    """The profiler cuts the folder of sys.path off its names."""
    if not Path(file).is_absolute() and not file.startswith("<"):
        for folder in sys.path:
            whole = Path(folder or ".") / file
            if whole.exists():
                return str(whole.absolute())
    return file


def _is_call(node: Any) -> bool:
    return node.tag.name in ("PyCall", "PyCCall")
