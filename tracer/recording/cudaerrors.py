"""Exceptions that speak of the CUDA device, caught or not, with the frames above and below the place they came up."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType

from tracer.recording.device_errors import speaks_of_cuda
from tracer.recording.linewatch import is_user_frame
from tracer.recording.ring import Ring

_KEPT = 50


def is_cuda_error(error: BaseException) -> bool:
    """Whether an exception speaks of the CUDA device: a RuntimeError of torch, Triton or another library.

    It is asked of every exception that is raised anywhere, so the type comes first.
    """
    return isinstance(error, RuntimeError) and speaks_of_cuda(str(error))


class CudaErrors:
    """Writes them to the ring, one for each of the user's lines."""

    def __init__(self, ring: Ring, is_user_file: Callable[[str], bool], thread_id: Callable[[], int]) -> None:
        self._ring = ring
        self._is_user_file = is_user_file
        self._thread_id = thread_id
        self._places: set[str] = set()

    @property
    def any(self) -> bool:
        """Whether there was one."""
        return bool(self._places)

    def note(self, error: BaseException) -> None:
        """Write it down, if it speaks of CUDA and comes from a new place."""
        if len(self._places) >= _KEPT or not is_cuda_error(error):
            return
        rows = [
            [
                frame.f_code.co_filename,
                line,
                frame.f_code.co_qualname,
                int(is_user_frame(self._is_user_file, frame)),
            ]
            for frame, line in _lines_of(error)
        ]
        users = [row for row in rows if row[3]]
        # On its way up the same exception is raised again in every frame; the user's innermost line stays the same.
        place = str(users[-1] if users else rows[-1:])
        if place not in self._places:
            self._places.add(place)
            self._ring.event("error", type(error).__name__, str(error), rows, self._thread_id())


def _lines_of(error: BaseException) -> list[tuple[FrameType, int]]:
    """Every frame and its line, from the program's start to where the error was raised."""
    inner = []
    at = error.__traceback__
    frame = at.tb_frame.f_back if at is not None else None
    while at is not None:
        inner.append((at.tb_frame, at.tb_lineno))
        at = at.tb_next
    outer = []
    while frame is not None:
        outer.append((frame, frame.f_lineno))
        frame = frame.f_back
    return outer[::-1] + inner
