"""Scalar replay: the values that synchronisations returned, recorded in one run and given back in another.

- `aten::_local_scalar_dense` (item, bool, float, int, format, `if`, and what C++ asks for)
  and `aten::nonzero` (masks as indices) get kernels of ours for one dispatch key. The
  original kernels stay reachable: outside the measured steps, in a stream capture and
  where values run out, they do the work.
- `Tensor.cpu()` and `Tensor.tolist()` of small tensors are given back too.
- A value is keyed by thread role, place in the user's code and turn, so that a value
  never goes to another line.
- In a replay `nonzero` becomes `nonzero_static` of the recorded size: no wait, the same
  indices. Where asked, the true count is compared on the device; one flag tells at the end.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracer.recording.realtime import perf_counter_ns
from tracer.recording.value_store import COUNT, READ, SCALAR, Store, Value

SMALL_BYTES = 4_096  # a read of more is a buffer's, and stays as it is
_TORCH = ("/torch/", "\\torch\\")
_OWN = str(Path(__file__).parent)


class Override:
    """The kernels of ours, while `active`."""

    def __init__(self, mode: str, dispatch_key: str, store: Store, *, check: bool = False) -> None:
        self.mode = mode  # "record" or "replay"
        self.store = store
        self.active = False
        self.check = check  # compare counts on the device, and mark our ranges for a profiler
        self.calls = 0
        self.missed: list[str] = []  # keys whose values ran out
        self.unused = 0  # values that nobody asked for, after `stop`
        self._key = dispatch_key
        self._turns: dict[str, int] = {}
        self._places: dict[tuple[Any, int], str] = {}
        self._main = threading.main_thread().ident
        self._inside = threading.local()
        self._wrong: Any = None  # on the device: how many counts did not match
        self._library: Any = None
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Put our kernels in front of torch's."""
        import warnings

        import torch

        get_kernel = torch.library.get_kernel
        self._scalar = get_kernel("aten::_local_scalar_dense", self._key)
        self._nonzero = get_kernel("aten::nonzero", self._key)
        self._capturing = torch.cuda.is_current_stream_capturing if self._key == "CUDA" else lambda: False
        self._static = torch.ops.aten.nonzero_static.default
        self._device = "cuda" if self._key == "CUDA" else self._key.lower()
        self._library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that a kernel is replaced, which is what we want
            self._library.impl("_local_scalar_dense", self._on_scalar, self._key, with_keyset=True)
            self._library.impl("nonzero", self._on_nonzero, self._key, with_keyset=True)
        if self._key != "CPU":
            self._patch("cpu")
            self._patch("tolist")

    def start(self) -> None:
        """From here on values are recorded, or given back."""
        self._turns.clear()
        self.active = True

    def stop(self) -> None:
        """Let torch's own kernels work again; what a replay left over is counted."""
        self.active = False
        if self.mode == "replay":
            self.unused = sum(max(0, len(v) - self._turns.get(k, 0)) for k, v in self.store.values.items())

    def remove(self) -> None:
        """Take our kernels away."""
        self.active = False
        if self._library is not None:
            self._library._destroy()
            self._library = None
        for undo in self._undo:
            undo()
        self._undo.clear()

    def wrong_counts(self) -> int:
        """How many sizes differed from the recorded ones: the one read at the end."""
        return int(self._wrong.cpu()) if self._wrong is not None else 0

    def cost_ns(self, make: Callable[[], Any], turns: int = 2_000) -> float:
        """What one replayed read costs the host by itself, on a tensor from `make`."""
        tensor = make()
        store, mode, turns_before, order = self.store, self.mode, self._turns, self.active
        try:
            self.mode, self.active = "replay", True
            best = float("inf")
            for _ in range(3):
                self.store, self._turns = Store(values=_Endless(Value(SCALAR, 1.0))), {}
                begin = perf_counter_ns()
                for _ in range(turns):
                    tensor.item()
                best = min(best, (perf_counter_ns() - begin) / turns)
            return best
        finally:
            self.store, self.mode, self._turns, self.active = store, mode, turns_before, order

    # What torch calls.

    def _on_scalar(self, keys: Any, tensor: Any) -> Any:
        if not self.active or self._busy() or self._capturing():
            return self._scalar.call_boxed(keys, tensor)
        key = self._where(SCALAR, tensor)
        if self.mode == "replay":
            found = self._next(key)
            if found is not None:
                return complex(*found.value) if found.kind == "complex" else found.value
            return self._scalar.call_boxed(keys, tensor)
        with _Range(self):
            value = self._scalar.call_boxed(keys, tensor)
        if isinstance(value, complex):
            self._keep(key, Value(SCALAR, [value.real, value.imag], "complex"))
        else:
            self._keep(key, Value(SCALAR, value))
        return value

    def _on_nonzero(self, keys: Any, tensor: Any) -> Any:
        if not self.active or self._busy() or self._capturing():
            return self._nonzero.call_boxed(keys, tensor)
        key = self._where(COUNT, tensor)
        if self.mode == "replay":
            found = self._next(key)
            if found is None:
                return self._nonzero.call_boxed(keys, tensor)
            with _Range(self):
                if self.check:
                    self._compare(tensor, found.value)
                return self._static(tensor, size=found.value)
        with _Range(self):
            indices = self._nonzero.call_boxed(keys, tensor)
        self._keep(key, Value(COUNT, int(indices.shape[0])))
        return indices

    def _compare(self, tensor: Any, size: int) -> None:
        import torch

        wrong = torch.count_nonzero(tensor).ne(size).to(torch.int64)
        self._wrong = wrong if self._wrong is None else self._wrong.to(wrong.device).add_(wrong)

    def _patch(self, name: str) -> None:
        """Give small tensors back from `Tensor.NAME()` too."""
        import torch

        own = torch.Tensor.__dict__.get(name)
        original = getattr(torch.Tensor, name)
        override = self

        def read(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            plain = not args and not kwargs and tensor.device.type == override._device and not tensor.requires_grad
            if not plain or not override.active or tensor.nbytes > SMALL_BYTES or override._capturing():
                return original(tensor, *args, **kwargs)
            key = override._where(f"{READ}.{name}", tensor)
            if override.mode == "replay":
                found = override._next(key)
                if found is None:
                    return original(tensor)
                return found.value if name == "tolist" else torch.tensor(found.value, dtype=tensor.dtype)
            with _Range(override):
                value = original(tensor)
            override._keep(key, Value(READ, value if name == "tolist" else value.tolist()))
            return value

        setattr(torch.Tensor, name, read)

        def undo() -> None:
            if own is None:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, own)

        self._undo.append(undo)

    # Keys and turns.

    def _busy(self) -> bool:
        return getattr(self._inside, "busy", False)

    def _where(self, what: str, tensor: Any) -> str:
        """The key of this call: thread role, place in the user's code, and what is asked."""
        frame = sys._getframe(1).f_back  # without a caller in Python on autograd's thread
        while frame is not None and _is_library(frame.f_code.co_filename):
            frame = frame.f_back
        me = threading.get_ident()
        if frame is None:
            return f"autograd:{tensor.device.index or 0}||{what}" if me != self._main else f"main||{what}"
        at = (frame.f_code, frame.f_lineno)
        place = self._places.get(at)
        if place is None:
            place = self._places[at] = f"{frame.f_code.co_filename}:{frame.f_lineno}|{what}"
        if me == self._main:
            return "main|" + place
        thread = threading._active.get(me)  # type: ignore[attr-defined]  # current_thread() would make a dummy
        return f"{thread.name if thread is not None else 'native'}|{place}"

    def _next(self, key: str) -> Value | None:
        self.calls += 1
        turn = self._turns.get(key, 0)
        self._turns[key] = turn + 1
        values = self.store.values.get(key)
        if values is None or turn >= len(values):
            self.missed.append(key)
            return None
        return values[turn]

    def _keep(self, key: str, value: Value) -> None:
        self.calls += 1
        self.store.values.setdefault(key, []).append(value)
        self.store.order.append(key)


class _Range:
    """While our kernel calls torch's: do not come back in here, and let a profiler see the range."""

    def __init__(self, override: Override) -> None:
        self._override = override
        self._mark: Any = None

    def __enter__(self) -> None:
        self._override._inside.busy = True
        if self._override.check:
            import torch

            self._mark = torch.profiler.record_function(RANGE)
            self._mark.__enter__()

    def __exit__(self, *exc: object) -> None:
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
        self._override._inside.busy = False


RANGE = "tracer::value"


class _Endless(dict[str, Any]):
    """Has the same value for whoever asks, at every turn."""

    def __init__(self, value: Value) -> None:
        super().__init__()
        self._value = value

    def get(self, key: str, default: Any = None) -> Any:
        return _Always(self._value)


class _Always(list[Any]):
    def __init__(self, value: Value) -> None:
        super().__init__([value])

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, at: Any) -> Any:
        return super().__getitem__(0)


def _is_library(filename: str) -> bool:
    return any(part in filename for part in _TORCH) or filename.startswith(_OWN)
