"""A number that the GPU writes to memory when it gets there: libcuda's stream memory operations.

A mark costs the host one driver call and the stream one small write. The memory
is our own, registered with CUDA, so it can still be read when the context is dead.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tracer.recording.ring import SHARED_BYTES, SLOTS, Ring

PORTABLE, DEVICEMAP = 1, 2
INVALID_CONTEXT, DEINITIALIZED, INVALID_HANDLE, NOT_SUPPORTED = 201, 4, 400, 801

# The context is dead for good after these; every later call returns the same.
FATAL = {
    700: "illegal memory access",
    702: "launch timed out",
    710: "device-side assert",
    714: "hardware stack error",
    715: "illegal instruction",
    716: "misaligned address",
    717: "invalid address space",
    718: "invalid program counter",
    719: "launch failed",
    721: "tensor memory leak",
    214: "uncorrectable memory error",
    999: "unknown error",
}


class MarksUnavailable(Exception):
    """The driver or the device cannot do this."""


class Writer(Protocol):
    """Sends a number down a stream."""

    addresses: Sequence[int]  # where each slot lies, as the device sees it
    write: Callable[[int, int, int, int], int]  # stream, address, value, 0 -> result code

    def supported(self, device: int) -> bool:
        """Whether the device can do it."""

    def adopt_thread(self) -> bool:
        """Give the calling thread a context."""

    def release(self) -> None:
        """Let go of the memory."""


class Gpu(Protocol):
    """What is current on the calling thread."""

    def has_context(self) -> bool:
        """Whether CUDA is in use on the current device; never begins to use it."""

    def device(self) -> int:
        """The current device."""

    def stream(self, device: int) -> int:
        """The current stream's handle."""

    def capturing(self) -> bool:
        """Whether the current stream is being captured; RuntimeError where that cannot be told."""

    def make_writer(self, ring: Ring) -> Writer:
        """A writer into this ring; raises MarksUnavailable."""


class TorchGpu:
    """The GPU as torch sees it."""

    def __init__(self) -> None:
        import torch

        _C: Any = torch._C

        self.device = _C._cuda_getDevice
        self.stream = _C._cuda_getCurrentRawStream
        self.capturing = _C._cuda_isCurrentStreamCapturing
        self._has_context = _C._cuda_hasPrimaryContext
        self._initialized = torch.cuda.is_initialized

    def has_context(self) -> bool:
        """Whether the current device has a primary context."""
        return self._initialized() and bool(self._has_context(self.device()))

    def make_writer(self, ring: Ring) -> Writer:
        """Through libcuda."""
        return CudaMarks(ring)


class CudaMarks:
    """Writes marks through libcuda. Needs a current CUDA context when made."""

    def __init__(self, ring: Ring) -> None:
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise MarksUnavailable(str(error)) from error
        self._host = ring.address()
        self._check(
            self._cuda.cuMemHostRegister_v2(
                ctypes.c_void_p(self._host), ctypes.c_size_t(SHARED_BYTES), PORTABLE | DEVICEMAP
            ),
            "cuMemHostRegister",
        )
        device = ctypes.c_uint64()
        self._check(
            self._cuda.cuMemHostGetDevicePointer_v2(ctypes.byref(device), ctypes.c_void_p(self._host), 0),
            "cuMemHostGetDevicePointer",
        )
        self.addresses: Sequence[int] = tuple(device.value + ring.slot_offset(slot) for slot in range(SLOTS))
        write = self._cuda.cuStreamWriteValue32_v2
        write.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint)
        write.restype = ctypes.c_int
        self.write: Callable[[int, int, int, int], int] = write
        context = ctypes.c_void_p()
        self._check(self._cuda.cuCtxGetCurrent(ctypes.byref(context)), "cuCtxGetCurrent")
        self._context = context

    def supported(self, device: int) -> bool:
        """Whether the device can do stream memory operations, as the driver says."""
        value = ctypes.c_int()
        for attribute in (92, 122):  # CAN_USE_STREAM_MEM_OPS_V1; 64-bit operations of the second interface
            if self._cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device) == 0 and value.value:
                return True
        return False

    def adopt_thread(self) -> bool:
        """Give a thread that has no context yet the one of the first mark, as the runtime would do."""
        return bool(self._cuda.cuCtxSetCurrent(self._context) == 0)

    def release(self) -> None:
        """Unregister the memory; fails silently on a dead context."""
        self._cuda.cuMemHostUnregister(ctypes.c_void_p(self._host))

    @staticmethod
    def _check(code: int, call: str) -> None:
        if code:
            raise MarksUnavailable(f"{call} returned {code}")
