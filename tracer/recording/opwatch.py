"""Tells of every torch operator before it runs: name, shapes, dtypes, the user's stack, the autograd node.

A dispatch mode sees operators one by one, those of the backward pass too, since
autograd carries the mode to its own threads. It lies at the bottom of the mode
stack, below every mode of the program, and leaves compiled code as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tracer.recording.cudaerrors import is_cuda_error
from tracer.recording.linewatch import is_user_frame, user_stack
from tracer.recording.marks import Marks

_SHORT = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float64": "f64",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
    "bool": "bool",
}
_STACK = 16  # user frames
_LAST_NODE = 1 << 62
_LISTED = 8  # tensors of a list that are looked at: optimisers pass hundreds

Check = Callable[..., list[str]]  # offending.check


def show_tensor(tensor: Any) -> str:
    """`f32[1000, 64]`."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{_SHORT.get(dtype, dtype)}[{', '.join(map(str, tensor.shape))}]"


def show_op(func: Any, values: Iterable[Any]) -> str:
    """`aten.embedding(f32[1000, 64], i64[32, 128])`."""
    return f"{str(func).removesuffix('.default')}({', '.join(map(_show, values))})"


def _show(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return show_tensor(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_show, value[:_LISTED]))}{', ...' if len(value) > _LISTED else ''}]"
    text = repr(value)
    return text if len(text) <= 24 else "..."


class OpWatch(TorchDispatchMode):  # type: ignore[misc]
    """Marks each operator on CUDA tensors; with `check`, looks at its inputs first."""

    def __init__(
        self, marks: Marks, is_user_file: Callable[[str], bool], check: Check | None = None, device: str = "cuda"
    ) -> None:
        super().__init__()
        self._marks = marks
        self._is_user_file = is_user_file
        self._check = check
        self._device = device
        self._broken = False
        self._ops: dict[object, int] = {}  # operator, dtypes and shapes -> its number
        self._texts: dict[int, str] = {}
        self._codes: dict[int, tuple[CodeType, bool]] = {}  # by id: the code, kept, and whether it is the user's own
        self._views: dict[Any, bool] = {}
        self._stacks: dict[object, tuple[int, int, int]] = {}  # codes and lines -> code, line, number of the stack

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled functions stay compiled."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would import all of its compiler to say so; `uncompiled.py` does it for nothing."""
        return False

    def enter_if_alone(self) -> bool:
        """Push the mode on the calling thread, unless the program has modes of its own there just now."""
        if torch._C._len_torch_dispatch_stack():
            return False
        self.__enter__()
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Mark, look, run."""
        if kwargs is None:
            kwargs = {}
        op = 0
        if not self._broken:
            try:
                op = self._look(func, args, kwargs)
            except Exception as error:  # whatever it is, the program goes on
                self._broken = True
                self._marks.give_up(error)
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            if op and is_cuda_error(error):
                self._marks.ring.event("op_error", op, self._marks.thread_id())
                self._marks.errors.note(error)
            raise

    def _look(self, func: Any, args: Any, kwargs: Any) -> int:
        """Mark an operator on the GPU; its number, 0 for one that launches nothing there."""
        key = [func]
        here = False
        for value in args:
            if isinstance(value, torch.Tensor):
                key += (value.dtype, value.shape)
                here = here or value.device.type == self._device
            elif isinstance(value, list | tuple):
                for item in value[:_LISTED]:
                    if isinstance(item, torch.Tensor):
                        key += (item.dtype, item.shape)
                        here = here or item.device.type == self._device
        if not here:
            device = kwargs.get("device")
            here = device is not None and torch.device(device).type == self._device
        if not here or self._is_view(func):
            return 0
        op = self._ops.get(tuple(key)) or self._name_op(tuple(key), func, args)
        self._record(op)
        if self._check is not None:
            found = self._check(func, args, kwargs, self._user_name)
            if found:
                self._marks.ring.event("offending", op, found, self._marks.thread_id())
        return op

    def _is_view(self, func: Any) -> bool:
        found = self._views.get(func)
        if found is None:
            found = self._views[func] = bool(getattr(func, "is_view", False))
        return found

    def _name_op(self, key: tuple[Any, ...], func: Any, args: Any) -> int:
        text = show_op(func, args)
        op = self._ops[key] = self._marks.ring.name("op", ("op", text), text)
        self._texts[op] = text
        return op

    def _record(self, op: int) -> None:
        code, line, stack = self._stack()
        node = torch._C._current_autograd_node()
        if node is None:
            # The node was made just before autograd passed the call on to us.
            autograd = torch._C._autograd._get_sequence_nr() - 1
        else:
            autograd = node._sequence_nr()
            if autograd > _LAST_NODE:  # the nodes that gather gradients have no number of their own
                autograd = -1
            text = f"{node.name()}: {self._texts[op]}"
            op = self._marks.ring.name("op", ("op", text), text)
        self._marks.send_op(code, line, stack, op, autograd)

    def _stack(self) -> tuple[int, int, int]:
        """The user's frames as numbers: code and line of the innermost, and the whole stack."""
        codes = self._codes
        found: list[FrameType] = []
        frame = sys._getframe(3).f_back  # none on a thread of autograd
        key: list[int] = []
        while frame is not None and len(found) < _STACK:
            code = frame.f_code
            known = codes.get(id(code))
            if known is None:
                known = codes[id(code)] = (code, is_user_frame(self._is_user_file, frame))
            if known[1]:
                found.append(frame)
                key += (id(frame.f_code), frame.f_lineno)
            frame = frame.f_back
        if not found:
            return -1, 0, -1
        stack = self._stacks.get(tuple(key))
        if stack is None:
            places = [(self._marks.code_id(frame.f_code), frame.f_lineno) for frame in found]
            number = self._marks.ring.name("stack", ("stack", *places), places)
            stack = self._stacks[tuple(key)] = (*places[0], number)
        return stack

    def _user_name(self, name: str, value: torch.Tensor) -> str:
        """What the user's own frames call this tensor, the innermost first; else the operator's name for it."""
        for frame in user_stack(self._is_user_file, sys._getframe(1)):
            for known, local in frame.f_locals.items():
                if local is value or (
                    isinstance(local, torch.Tensor)
                    and local.shape == value.shape
                    and local.device == value.device
                    and local.data_ptr() == value.data_ptr()
                ):
                    return str(known)
        return name
