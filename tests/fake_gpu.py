"""A GPU that is a row of queues: it runs what was queued, and dies of a fault like a real one."""

from __future__ import annotations

from collections.abc import Callable

from tracer.recording.ring import SLOTS, Ring

ASSERT = 710


class FakeGpu:
    """What marks.py asks of a GPU, on the CPU. `launch` queues work, `run` lets the GPU catch up."""

    def __init__(self) -> None:
        self.current = 0  # the current stream
        self.in_capture = False
        self.context = True
        self.dead = 0
        self.addresses = tuple(range(SLOTS))
        self._queues: dict[int, list[Callable[[], None]]] = {}
        self._memory: memoryview | None = None
        self._ring: Ring | None = None

    def has_context(self) -> bool:
        return self.context

    def device(self) -> int:
        return 0

    def stream(self, device: int) -> int:
        return self.current

    def capturing(self) -> bool:
        return self.in_capture

    def make_writer(self, ring: Ring) -> FakeGpu:
        self._ring = ring
        return self

    def supported(self, device: int) -> bool:
        return True

    def adopt_thread(self) -> bool:
        return True

    def release(self) -> None:
        pass

    def write(self, stream: int, address: int, value: int, flags: int) -> int:
        if self.dead:
            return self.dead

        def land() -> None:
            at = self._ring.slot_offset(address)
            self._ring.memory[at : at + 4] = value.to_bytes(4, "little")

        self._queues.setdefault(stream, []).append(land)
        return 0

    def launch(self, fault: int = 0) -> None:
        """Queue a kernel; `fault` kills the context when it runs."""

        def kernel() -> None:
            self.dead = fault

        self._queues.setdefault(self.current, []).append(kernel)

    def run(self, stream: int, count: int = 1_000_000) -> None:
        """Let a stream go on for so many entries, or until the context is dead."""
        queue = self._queues.get(stream, [])
        while queue and count and not self.dead:
            queue.pop(0)()
            count -= 1
