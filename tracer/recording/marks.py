"""Progress marks: the GPU itself writes down which of the program's lines it has finished.

Before each line of the user's code, and after each return to one, a number goes
down the current stream. When a kernel fails, every later number is lost: the last
one that landed leads to the line of the guilty launch, in one run, without
blocking launches.

- Marks begin when a CUDA context exists, and never wake CUDA themselves.
- A stream that is being captured into a graph is never marked.
- The first call that comes back with a fatal code ends the marking: nothing that
  is launched afterwards can be told from its consequences.
- `every_ns` thins the marks out: the GPU is asked only that often; the lines in
  between leave a number in memory and no more. The bracket is then some lines wide.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

from tracer.recording.cudaerrors import CudaErrors
from tracer.recording.cudamarks import (
    DEINITIALIZED,
    FATAL,
    INVALID_CONTEXT,
    Gpu,
    MarksUnavailable,
    TorchGpu,
    Writer,
)
from tracer.recording.linewatch import DISABLE, LineWatch, user_stack
from tracer.recording.ring import LINE, NO_SLOT, RETURN, Ring

SPARSE_NS = 100_000


class Marks:
    """Marks for one process, from the first CUDA context to the first failure."""

    def __init__(
        self, path: Path, is_user_file: Callable[[str], bool], *, every_ns: int = 0, gpu: Gpu | None = None
    ) -> None:
        self.ring = Ring(path)
        self.every_ns = every_ns
        self.why_not = ""
        self.failed = False
        self._is_user_file = is_user_file
        self._gpu = gpu or TorchGpu()
        self._writer: Writer | None = None
        self._lines: dict[int, dict[int, int]] = {}  # id of a code -> line -> its place in the log
        self._codes: dict[int, CodeType] = {}  # kept, so that an id stays its own
        self._threads: dict[int, int] = {}
        self._whos: dict[int, dict[tuple[int, int], tuple[int, int, int]]] = {}
        self.errors = CudaErrors(self.ring, is_user_file, self.thread_id)
        self._send: Callable[[int], None] = self._wait_for_cuda  # logs a place and marks it
        self.watch = LineWatch(is_user_file, self.on_line, self._on_return, self.errors.note)

    def start(self) -> bool:
        """Watch the user's lines; False where the interpreter cannot."""
        _started.add(self)
        for frame in user_stack(self._is_user_file, sys._getframe(1)):
            self._send(self.place(frame.f_code, frame.f_lineno))
        return self.watch.start()

    def stop(self) -> None:
        """Undo the hooks; what was written stays."""
        self.watch.stop()
        self._send = _nothing
        if self._writer is not None and not self.failed:
            self._writer.release()

    def code_id(self, code: CodeType) -> int:
        """The number of a piece of code. Codes of two files may be equal, so they are told apart by identity."""
        self._codes.setdefault(id(code), code)
        return self.ring.name("code", ("code", id(code)), code.co_filename, code.co_qualname, code.co_firstlineno)

    def place(self, code: CodeType, line: int, kind: int = LINE) -> int:
        """The number of a line in the log."""
        number = self.code_id(code)
        return self.ring.name("place", (number, line, kind), number, line, kind)

    def thread_id(self) -> int:
        """The calling thread's native id."""
        ident = threading.get_ident()
        found = self._threads.get(ident)
        if found is None:
            found = self._threads[ident] = threading.get_native_id()
            self.ring.event("thread", found, threading.current_thread().name)
        return found

    def who(self, slot: int) -> int:
        """The number of the calling thread on this slot."""
        tid = self.thread_id()
        return self.ring.name("who", ("who", tid, slot), tid, slot)

    def on_line(self, code: CodeType, line: int) -> Any:
        """Mark a line that is about to run."""
        launching = self.watch.launching.get(id(code))
        if launching is not None and line not in launching:
            return DISABLE
        self._send(self.place(code, line))
        return None

    def _on_return(self, code: CodeType | None, line: int) -> None:
        place = self.ring.name("place", ("nobody",), -1, 0, RETURN) if code is None else self.place(code, line, RETURN)
        if self.every_ns and self._writer is not None:
            self.ring.log(place, self.who(NO_SLOT))
        else:
            self._send(place)

    def _wait_for_cuda(self, place: int) -> None:
        try:
            self._arm(place)
        except Exception as error:  # whatever it is, the program goes on
            self.give_up(error)

    def _arm(self, place: int) -> None:
        gpu = self._gpu
        if not gpu.has_context():
            self.ring.log(place, self.who(NO_SLOT))
            return
        self._writer = gpu.make_writer(self.ring)
        if not self._writer.supported(gpu.device()):
            raise MarksUnavailable("the driver says that this device cannot do stream memory operations")
        self._send = self._make_send(self._writer)
        self.watch.hear(self._make_thinned(self._send) if self.every_ns else self._make_dense(self._send))
        self.ring.event("armed", self.every_ns)
        self._send(place)

    def _make_dense(self, send: Callable[[int], None]) -> Callable[[CodeType, int], Any]:
        """What hears of each line."""
        lines, first = self._lines, self._first_time

        def on_line(code: CodeType, line: int) -> Any:
            try:
                place = lines[id(code)][line]
            except KeyError:
                place = first(code, line)
                if not place:
                    return DISABLE
            send(place)
            return None

        return on_line

    def _make_thinned(self, send: Callable[[int], None]) -> Callable[[CodeType, int], Any]:
        """What hears of lines when marks are thinned out: two numbers go to memory until a mark is due."""
        lines, first, ring = self._lines, self._first_time, self.ring
        numbers, mask, places, last = ring.numbers, ring.mask, ring.places, ring.last
        whos, now, every = ring.who, time.monotonic_ns, self.every_ns
        nobody = self.ring.name("who", ("who", 0, NO_SLOT), 0, NO_SLOT)
        due = 0

        def on_line(code: CodeType, line: int) -> Any:
            nonlocal due
            try:
                place = lines[id(code)][line]
            except KeyError:
                place = first(code, line)
                if not place:
                    return DISABLE
            if now() >= due:
                send(place)
                due = now() + every
                return None
            seq = next(numbers)
            at = seq & mask
            places[at] = place
            whos[at] = nobody
            last[0] = seq
            return None

        return on_line

    def _first_time(self, code: CodeType, line: int) -> int:
        """The place of a line that was not seen before, 0 if it can launch nothing."""
        if line not in self.watch.launching.get(id(code), (line,)):
            return 0
        place = self._lines.setdefault(id(code), {})[line] = self.place(code, line)
        return place

    def _make_send(self, writer: Writer) -> Callable[[int], None]:
        """The hot path: everything it needs is a local name."""
        ring = self.ring
        numbers, mask, places, whos, last = ring.numbers, ring.mask, ring.places, ring.who, ring.last
        write, ident, known, learn = writer.write, threading.get_ident, self._whos, self._learn
        get_device, get_stream, capturing = self._gpu.device, self._gpu.stream, self._gpu.capturing

        def send(place: int) -> None:
            try:
                device = get_device()
                stream = get_stream(device)
                try:
                    who, address, slot = known[ident()][device, stream]
                except KeyError:
                    who, address, slot = learn(device, stream)
                try:
                    marked = slot != NO_SLOT and not capturing()
                except RuntimeError:
                    # Another stream is being captured: nothing to do. Or the context is dead: the next write says so.
                    marked = self.errors.any
                seq = next(numbers)
                at = seq & mask
                places[at] = place
                whos[at] = who if marked else self.who(NO_SLOT)
                last[0] = seq
                if marked:
                    result = write(stream, address, seq, 0)
                    if result:
                        self._refused(result, device, stream, address, seq)
            except Exception as error:  # whatever it is, the program goes on
                self.give_up(error)

        return send

    def _learn(self, device: int, stream: int) -> tuple[int, int, int]:
        """What a thread needs to mark a stream that it marks for the first time."""
        assert self._writer is not None
        slot = self.ring.slot(device, stream)
        address = 0 if slot == NO_SLOT else self._writer.addresses[slot]
        found = self._whos.setdefault(threading.get_ident(), {})[device, stream] = (self.who(slot), address, slot)
        return found

    def send_op(self, code: int, line: int, stack: int, op: int, autograd: int) -> None:
        """Mark an operator that is about to run."""
        if self._writer is None and self._send is not _nothing and self._gpu.has_context():
            self._send(self.ring.name("place", ("nobody",), -1, 0, RETURN))
        writer = self._writer
        if writer is None or self._send is _nothing:
            self.ring.put_op(NO_SLOT, self.thread_id(), code, line, stack, op, autograd)
            return
        device = self._gpu.device()
        stream = self._gpu.stream(device)
        try:
            _, address, slot = self._whos[threading.get_ident()][device, stream]
        except KeyError:
            _, address, slot = self._learn(device, stream)
        try:
            marked = slot != NO_SLOT and not self._gpu.capturing()
        except RuntimeError:
            marked = self.errors.any
        seq = self.ring.put_op(slot if marked else NO_SLOT, self.thread_id(), code, line, stack, op, autograd)
        if marked:
            result = writer.write(stream, address, seq, 0)
            if result:
                self._refused(result, device, stream, address, seq)

    def give_up(self, error: Exception) -> None:
        """Leave the program alone from now on, and say why."""
        self.why_not = str(error) if isinstance(error, MarksUnavailable) else f"they broke off: {error!r}"
        self._end()
        with contextlib.suppress(OSError):
            self.ring.event("no_marks", self.why_not)

    def _refused(self, result: int, device: int, stream: int, address: int, seq: int) -> None:
        writer = self._writer
        if result == INVALID_CONTEXT and writer is not None and writer.adopt_thread():
            result = writer.write(stream, address, seq, 0)
        if result in FATAL:
            self.failed = True
            self._end()
            self.ring.event("dead", result, FATAL[result], device, self.thread_id())
        elif result == DEINITIALIZED:
            self._end()

    def _end(self) -> None:
        self._send = _nothing
        self.watch.hear(_nothing_on_line)

    def forked(self) -> None:
        """Leave the ring, which is the parent's, alone; CUDA does not survive a fork anyway."""
        self._send = _nothing
        self.watch.stop()


_started: weakref.WeakSet[Marks] = weakref.WeakSet()


def _all_forked() -> None:
    for marks in tuple(_started):
        marks.forked()


os.register_at_fork(after_in_child=_all_forked)


def _nothing(place: int) -> None:
    """A mark where there is nothing to mark."""


def _nothing_on_line(code: CodeType, line: int) -> Any:
    return DISABLE
