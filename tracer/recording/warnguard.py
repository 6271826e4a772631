"""Hears chosen warnings before the program's filters do, and keeps them and itself out of sight.

torch tells of a synchronisation by a warning. Heard naively, through a filter and
`showwarning`, it is lost inside the program's `catch_warnings`, and under its "error"
filter the operation raises. Here instead:

- The interpreter asks each filter's message for `match(text)`, in C, on the thread that
  warns and before any action. A filter of ours at the very front is therefore a hook:
  it hears, says "ignore", and neither filters behind it nor `showwarning` are reached.
- It must stay at the front. So `warnings.filters` is a list whose first item only the
  C code sees (it reads the raw memory of lists): insert(0, ...), clear(), slices and
  all else work on what lies behind. A list that the program (or the end of a
  `catch_warnings` from before our time) puts in its place becomes such a list too,
  since the module got a class where `filters` is a property.
- Nothing else changes: no registry is touched by an "ignore".
"""

from __future__ import annotations

import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

TESTED = ((3, 11), (3, 12), (3, 13))  # from 3.14 on filters live in context variables

_READ = (
    "__len__ __iter__ __getitem__ __contains__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __repr__ __reversed__ __add__ "
    "__mul__ __rmul__ index count copy"
)
_CHANGE = "__setitem__ __delitem__ __imul__ pop remove clear reverse sort"


class _Filters(list[Any]):
    """The program's filters, behind one that it does not see."""

    __slots__ = ()
    __hash__ = None

    def __init__(self, behind: Any, first: tuple[Any, ...]) -> None:
        super().__init__([first, *behind])

    def insert(self, index: Any, item: Any) -> None:
        # One step, so that no other thread's change is lost: this is what catch_warnings and simplefilter use.
        size = list.__len__(self)
        list.insert(self, index + 1 if index >= 0 else max(size + index, 1), item)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return list, (_behind(self),)


def _behind(filters: Any) -> list[Any]:
    return list.__getitem__(filters, slice(1, None))


def _reading(name: str) -> Callable[..., Any]:
    plain = getattr(list, name)

    def method(self: _Filters, *others: Any) -> Any:
        others = tuple(_behind(other) if type(other) is _Filters else other for other in others)
        return plain(_behind(self), *others)

    method.__name__ = name
    return method


def _changing(name: str) -> Callable[..., Any]:
    plain = getattr(list, name)

    def method(self: _Filters, *values: Any, **options: Any) -> Any:
        behind = _behind(self)
        result = plain(behind, *values, **options)
        list.__setitem__(self, slice(1, None), behind)
        return self if name == "__imul__" else result

    method.__name__ = name
    return method


for _name in _READ.split():
    setattr(_Filters, _name, _reading(_name))
for _name in _CHANGE.split():
    setattr(_Filters, _name, _changing(_name))


class WarnGuard:
    """Offers warnings to `hear(text)`; what it answers with True is not seen by the program."""

    def __init__(self, hear: Callable[[str], bool]) -> None:
        self._hear = hear
        self._installed = False
        # The interpreter calls this for every warning, in the place of a regular expression's match(); a plain
        # attribute, so that nothing stands between it and the hearer.
        self.match: Callable[[str], bool] = _deaf
        self._first = ("ignore", self, Warning, None, 0)

    def install(self) -> bool:
        """Go in front; False on a Python where this is not tested."""
        if sys.version_info[:2] not in TESTED:
            return False
        if not self._installed:
            self._installed = True
            self.match = self._hear
            # Chosen at run time, since it must know this guard; a plain module class underneath.
            guard = self

            def get(module: types.ModuleType) -> Any:
                return module.__dict__["filters"]

            def put(module: types.ModuleType, value: Any) -> None:
                module.__dict__["filters"] = guard._in_front_of(value)

            shaped = type(types.ModuleType.__name__, (types.ModuleType,), {"filters": property(get, put)})
            shaped.__module__ = types.ModuleType.__module__
            module: Any = warnings
            module.__dict__["filters"] = self._in_front_of(module.__dict__["filters"])
            module.__class__ = shaped
            module._filters_mutated()
        return True

    def _in_front_of(self, value: Any) -> Any:
        if type(value) is _Filters:
            list.__setitem__(value, 0, self._first)
            return value
        return _Filters(value, self._first) if isinstance(value, list) else value

    def uninstall(self) -> None:
        """Leave; lists that someone still holds keep a first filter that matches nothing."""
        if self._installed:
            self._installed = False
            self.match = _deaf
            module: Any = warnings
            module.__class__ = types.ModuleType
            if type(module.filters) is _Filters:
                module.filters = _behind(module.filters)
            module._filters_mutated()


def _deaf(text: str) -> bool:
    return False


def program_action(text: str, category: type[Warning], module: str, line: int) -> str:
    """What the program's own filters would do with a warning."""
    for action, message, kind, where, at in list(warnings.filters):
        if (
            (message is None or (message == text if isinstance(message, str) else message.match(text)))
            and issubclass(category, kind)
            and (where is None or (where == module if isinstance(where, str) else where.match(module)))
            and at in (0, line)
        ):
            return str(action)
    return str(getattr(warnings, "defaultaction", "default"))
