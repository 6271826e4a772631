"""Where the program's steps begin, without touching the program.

A step begins where the program says so: `tracer.step()`, the step of its own
torch.profiler, a mark named ProfilerStep#N (or another, if asked for), or else its
optimizer. Of two optimizers that take turns, a boundary is the second call on the
*same* one. A step that GradScaler skips counts: it is seen at `scaler.update()`.

Nothing here stands between the program and torch: attributes are replaced by
descriptors that take note and hand out the original, so that no frame of ours is in
a traceback.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# The better source wins as soon as it is seen.
RANKS = {"optimizer": 1, "mark": 2, "profiler": 3, "tracer": 4}
_MARK = "ProfilerStep#"


class Noting:
    """Stands for a method of a class: tells `note` who is about to call it, and hands out the original."""

    def __init__(self, owner: type, name: str, note: Callable[[Any], None]) -> None:
        self._owner = owner
        self._name = name
        self._original = owner.__dict__[name]
        self._note = note
        setattr(owner, name, self)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is not None:
            self._note(instance)
        return self._original.__get__(instance, owner)

    def remove(self) -> None:
        """Put the original back, unless someone has replaced us since."""
        if self._owner.__dict__.get(self._name) is self:
            setattr(self._owner, self._name, self._original)


class Turns:
    """Counts optimizer calls: whoever is called for the second time begins a new round."""

    def __init__(self) -> None:
        self._called: set[int] = set()
        self._first = True

    def call(self, optimizer: int) -> bool:
        """Note a call of this optimizer; whether a step begins here."""
        if self._first or optimizer in self._called:
            self._first = False
            self._called = {optimizer}
            return True
        self._called.add(optimizer)
        return False


class StepHooks:
    """Hooks into torch that call `boundary(source)` wherever a step may begin."""

    def __init__(self, step_from: str, boundary: Callable[[str], None]) -> None:
        self._boundary = boundary
        self._turns = Turns()
        self._stepped: set[int] = set()  # optimizers whose hook fired since the last scaler.update()
        self._mark = step_from.removeprefix("mark:") if step_from.startswith("mark:") else ""
        self._undo: list[Callable[[], None]] = []
        if step_from in ("auto", "optimizer"):
            self._hook_optimizers()
        if step_from in ("auto", "profiler"):
            self._hook_profiler()
        if self._mark:
            self._hook_marks(self._mark)
            self._hook_nvtx()
        elif step_from == "auto":
            self._hook_marks(_MARK)

    def remove(self) -> None:
        """Leave torch as it was."""
        for undo in self._undo:
            undo()
        self._undo.clear()

    def _hook_optimizers(self) -> None:
        from torch.amp.grad_scaler import GradScaler
        from torch.optim.optimizer import register_optimizer_step_post_hook

        def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
            self._stepped.add(id(optimizer))
            if self._turns.call(id(optimizer)):
                self._boundary("optimizer")

        self._undo.append(register_optimizer_step_post_hook(stepped).remove)
        self._undo.append(Noting(GradScaler, "update", self._scaler_updates).remove)

    def _scaler_updates(self, scaler: Any) -> None:
        """Count the steps that this scaler skipped: it says stepped, and no hook fired."""
        states = getattr(scaler, "_per_optimizer_states", {})
        for optimizer, state in tuple(states.items()):
            name = getattr(state.get("stage"), "name", "")
            if name == "STEPPED" and optimizer not in self._stepped and self._turns.call(optimizer):
                self._boundary("optimizer")
        self._stepped.clear()

    def _hook_profiler(self) -> None:
        from torch.profiler import profile

        self._undo.append(Noting(profile, "step", lambda _: self._boundary("profiler")).remove)

    def _hook_marks(self, name: str) -> None:
        from torch.autograd.profiler import record_function

        def entered(mark: Any) -> None:
            if mark.name == name or (name == _MARK and mark.name.startswith(_MARK)):
                self._boundary("mark")

        self._undo.append(Noting(record_function, "__enter__", entered).remove)

    def _hook_nvtx(self) -> None:
        from torch.cuda import nvtx

        original = nvtx.range_push

        def range_push(msg: str) -> Any:
            if msg == self._mark:
                self._boundary("mark")
            return original(msg)

        def undo() -> None:
            if nvtx.range_push is range_push:
                nvtx.range_push = original

        nvtx.range_push = range_push
        self._undo.append(undo)
