"""Progress marks: the GPU itself writes down which of the program's lines it has finished.

Before each line of the user's code, and after each return to one, a number goes
down the current stream. When a kernel fails, every later number is lost: the last
one that landed leads to the line of the guilty launch, in one run, without
blocking launches.

- Marks begin when a CUDA context exists, and never wake CUDA themselves.
- A stream that is being captured into a graph is never marked.
- The first call that comes back with a fatal code ends the marking: nothing that
  is launched afterwards can be told from its consequences.
- `every_ns` thins the marks out: lines are still written to the ring, but the
  GPU is asked only that often. The bracket is then some lines wide.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

from tracer.recording.cudamarks import (
    DEINITIALIZED,
    FATAL,
    INVALID_CONTEXT,
    Gpu,
    MarksUnavailable,
    TorchGpu,
    Writer,
)
from tracer.recording.linewatch import LineWatch
from tracer.recording.ring import LINE, NO_SLOT, RECORD, RETURN, SHARED_BYTES, Ring

_ERRORS_KEPT = 50
DENSE_NS = 0
SPARSE_NS = 100_000


def is_cuda_error(error: BaseException) -> bool:
    """Whether an exception speaks of the CUDA device. torch raises RuntimeError before 2.8, libraries their own."""
    text = str(error)
    return "CUDA error" in text or "[CUDA]" in text or "cudaError" in text or "CUDA_ERROR" in text


def user_stack(is_user_file: Callable[[str], bool], frame: FrameType | None, limit: int = 16) -> list[FrameType]:
    """The user's own frames, innermost first."""
    found: list[FrameType] = []
    while frame is not None and len(found) < limit:
        if is_user_file(frame.f_code.co_filename):
            found.append(frame)
        frame = frame.f_back
    return found


class Marks:
    """Marks for one process, from the first CUDA context to the first failure."""

    def __init__(
        self,
        path: Path,
        is_user_file: Callable[[str], bool],
        *,
        every_ns: int = DENSE_NS,
        gpu: Gpu | None = None,
    ) -> None:
        self.ring = Ring(path)
        self.every_ns = every_ns
        self.why_not = ""
        self.failed = False
        self._errors: set[str] = set()
        self._is_user_file = is_user_file
        self._gpu = gpu or TorchGpu()
        self._writer: Writer | None = None
        self._codes: dict[int, int] = {}
        self._kept: list[CodeType] = []
        self._threads: dict[int, int] = {}
        self.mark: Callable[[int, int, int, int, int, int], None] = self._wait_for_cuda
        self.watch = LineWatch(is_user_file, self._on_line, self._on_return, self.on_error)

    def start(self) -> bool:
        """Watch the user's lines; False where the interpreter cannot."""
        os.register_at_fork(after_in_child=self._forked)
        for frame in user_stack(self._is_user_file, sys._getframe(1)):
            self.mark(LINE, self.code_id(frame.f_code), frame.f_lineno, -1, -1, -1)
        return self.watch.start()

    def stop(self) -> None:
        """Undo the hooks; what was written stays."""
        self.watch.stop()
        self.mark = _nothing
        if self._writer is not None and not self.failed:
            self._writer.release()

    def code_id(self, code: CodeType) -> int:
        """The number of a piece of code in the ring."""
        found = self._codes.get(id(code))
        if found is None:
            self._kept.append(code)  # so that its id stays its own
            found = self.ring.name("code", code, code.co_filename, code.co_qualname, code.co_firstlineno)
            self._codes[id(code)] = found
        return found

    def thread_id(self) -> int:
        """A small number for the calling thread."""
        ident = threading.get_ident()
        found = self._threads.get(ident)
        if found is None:
            found = self._threads[ident] = threading.get_native_id()
            self.ring.event("thread", found, threading.current_thread().name)
        return found

    def _on_line(self, code: CodeType, line: int) -> None:
        found = self._codes.get(id(code))
        self.mark(LINE, self.code_id(code) if found is None else found, line, -1, -1, -1)

    def _on_return(self, code: CodeType, line: int) -> None:
        self.mark(RETURN, self.code_id(code), line, -1, -1, -1)

    def on_error(self, error: BaseException) -> None:
        """Note an exception that speaks of CUDA, caught or not, with the frames above and below it."""
        if len(self._errors) >= _ERRORS_KEPT or not is_cuda_error(error):
            return
        frames = _frames_of(error)
        rows = [[file, line, name, int(self._is_user_file(file))] for file, line, name in frames]
        users = [row for row in rows if row[3]]
        # On its way up the same exception is raised again in every frame; the user's innermost line stays the same.
        where = str(users[-1] if users else rows[-1:])
        if where in self._errors:
            return
        self._errors.add(where)
        self.ring.event("error", type(error).__name__, str(error), rows, self.thread_id())

    def _wait_for_cuda(self, kind: int, code: int, line: int, stack: int, op: int, autograd: int) -> None:
        gpu = self._gpu
        if not gpu.has_context():
            self.ring.put(kind, NO_SLOT, self.thread_id(), code, line, stack, op, autograd)
            return
        try:
            self._writer = gpu.make_writer(self.ring)
            if not self._writer.supported(gpu.device()):
                raise MarksUnavailable("the driver says that this device cannot do stream memory operations")
        except MarksUnavailable as error:
            self.why_not = str(error)
            self.mark = _nothing
            self.ring.event("no_marks", str(error))
            return
        self.mark = self._make_mark(self._writer)
        self.ring.event("armed")
        self.mark(kind, code, line, stack, op, autograd)

    def _make_mark(self, writer: Writer) -> Callable[[int, int, int, int, int, int], None]:
        """The hot path: everything it needs is a local name."""
        ring, every = self.ring, self.every_ns
        memory, mask, numbers = ring.memory, ring.capacity - 1, ring.numbers
        pack, now, ident, threads = RECORD.pack_into, time.monotonic_ns, threading.get_ident, self._threads
        addresses, write = writer.addresses, writer.write
        get_device, get_stream, capturing = self._gpu.device, self._gpu.stream, self._gpu.capturing
        slots: dict[tuple[int, int], int] = {}
        last: dict[int, int] = {}
        size, base = RECORD.size, SHARED_BYTES
        thread_id = self.thread_id

        def mark(kind: int, code: int, line: int, stack: int, op: int, autograd: int) -> None:
            time_ns = now()
            tid = threads.get(ident()) or thread_id()
            slot = NO_SLOT
            device = get_device()
            stream = get_stream(device)
            found = slots.get((device, stream))
            if found is None:
                found = slots[device, stream] = ring.slot(device, stream)
            if found >= 0 and time_ns - last.get(found, 0) >= every:
                try:
                    if not capturing():
                        slot = found
                except RuntimeError:
                    # Another stream is being captured (nothing to do), or the context is dead
                    # (the next write says so).
                    slot = found if self._errors else NO_SLOT
            seq = ring.last = next(numbers)
            at = base + (seq & mask) * size
            pack(memory, at, seq, time_ns, tid, code, line, stack, op, autograd, slot, kind)
            if slot == NO_SLOT:
                return
            if every:
                last[slot] = time_ns
            result = write(stream, addresses[slot], seq & 0xFFFFFFFF, 0)
            if result:
                if result == INVALID_CONTEXT and writer.adopt_thread():
                    result = write(stream, addresses[slot], seq & 0xFFFFFFFF, 0)
                if result:
                    self._refused(result, device, code, line)

        return mark

    def _refused(self, result: int, device: int, code: int, line: int) -> None:
        if result in FATAL:
            self.failed = True
            self.mark = _nothing
            self.ring.event("dead", result, FATAL[result], device, code, line, self.thread_id())
        elif result == DEINITIALIZED:
            self.mark = _nothing

    def _forked(self) -> None:
        # The child shares the parent's ring and must not write to it; CUDA does not survive a fork anyway.
        self.mark = _nothing
        self.watch.stop()


def _nothing(kind: int, code: int, line: int, stack: int, op: int, autograd: int) -> None:
    """A mark where there is nothing to mark."""


def _frames_of(error: BaseException) -> list[tuple[str, int, str]]:
    """File, line and function of every frame from the program's start to where the error was raised."""
    inner = []
    at = error.__traceback__
    frame = at.tb_frame.f_back if at is not None else None
    while at is not None:
        code = at.tb_frame.f_code
        inner.append((code.co_filename, at.tb_lineno, code.co_qualname))
        at = at.tb_next
    outer = []
    while frame is not None:
        outer.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname))
        frame = frame.f_back
    return outer[::-1] + inner
