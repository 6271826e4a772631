"""Finds timers in source text: which clock reads are subtracted, and whether something waits for the GPU in between.

Works on the syntax tree alone, runs nothing, and is conservative: a call that it
cannot see into is taken as waiting if its name says so, and functions of the same
file are looked into.

Control flow is followed in the order of the text: a loop's body once, both arms of
an `if`. That is enough for timers, which are written in straight lines.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tracer.analysis.clock_names import with_plain_clocks

CLOCKS = frozenset(
    f"{name}{suffix}"
    for name in ("time", "perf_counter", "monotonic", "process_time", "thread_time", "default_timer")
    for suffix in ("", "_ns")
)
# Calls after which the GPU work launched before is known to be done.
WAITS = frozenset(
    {"synchronize", "item", "cpu", "tolist", "numpy", "elapsed_time", "wait", "barrier", "block_until_ready"}
    | {"do_bench", "do_bench_cudagraph", "blocked_autorange", "timeit", "empty_cache", "nonzero", "get_scale", "result"}
)
_WAITING_BUILTINS = frozenset({"float", "int", "bool"})
# Calls that make tensors and little else: what they leave running hardly dirties a start.
_FACTORIES = frozenset(
    {"randn", "rand", "zeros", "ones", "empty", "full", "arange", "tensor", "randint", "to", "cuda", "manual_seed"}
    | {"randn_like", "rand_like", "zeros_like", "ones_like", "empty_like", "eye", "linspace", "device", "eval", "train"}
    | {"half", "bfloat16", "parameters", "requires_grad_", "Generator", "compile", "Tensor", "as_tensor", "from_numpy"}
)
# Calls that launch nothing, so that a timer around them is none of our business.
_HOST_CALLS = frozenset(
    {"print", "len", "range", "append", "extend", "format", "join", "open", "write", "read", "flush", "sleep", "get"}
    | {
        "max",
        "min",
        "sum",
        "round",
        "sorted",
        "zip",
        "enumerate",
        "list",
        "dict",
        "set",
        "tuple",
        "str",
        "repr",
        "next",
    }
    | {"info", "debug", "warning", "error", "update", "items", "keys", "values", "isinstance", "getattr", "setattr"}
    | {"Event", "Stream", "record", "device_count", "is_available", "Timer", "load", "loads", "dump", "dumps", "strip"}
    | {"split", "replace", "startswith", "endswith", "exists", "mkdir", "collect", "pop", "insert", "sort", "copy"}
    | {"int", "float", "bool", "abs", "any", "all", "iter", "map", "filter", "set_description", "set_postfix", "type"}
)


@dataclass(frozen=True, slots=True)
class Read:
    """A call of a clock in the text."""

    line: int
    column: int  # 1-based
    end_column: int  # one past the last
    clock: str


@dataclass(frozen=True, slots=True)
class SourceTimer:
    """Two clock reads (or CUDA events) of one function that the text subtracts."""

    start: Read
    end: Read
    function: str
    launches: int  # calls in between that look like GPU work
    waited: bool  # something waits between the last of them and the end
    clean_start: bool  # nothing looks like unfinished GPU work at the start
    events: bool = False  # CUDA events with elapsed_time
    collected: bool = False  # the difference is appended or added to others, so that a cold first one counts


@dataclass(frozen=True, slots=True)
class Source:
    """A file of Python text that may use CUDA, and its timers."""

    file: str
    text: str
    timers: tuple[SourceTimer, ...]
    blocking: tuple[Read, ...]  # where it switches CUDA_LAUNCH_BLOCKING on for itself


def read_source(file: str, text: str) -> Source | None:
    """Look through one file; None if it has nothing to do with a GPU.

    Raises SyntaxError or ValueError (null bytes) for text that is not Python, and RecursionError
    or MemoryError for what is nested too deep, as generated code can be.
    """
    tree = ast.parse(text)
    if not uses_cuda(tree):
        return None
    return Source(file, text, tuple(find_timers(tree)), tuple(find_blocking_switch(tree)))


def read_any(file: str, text: str) -> Source | None:
    """The same for text that came with a trace: None, too, for what cannot be read as Python of this version."""
    try:
        return read_source(file, text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def uses_cuda(tree: ast.AST) -> bool:
    """Whether a file imports torch (or triton, cupy) and speaks of a GPU."""
    imports = False
    speaks = False
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports |= any(alias.name.split(".")[0] in ("torch", "triton", "cupy") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imports |= (node.module or "").split(".")[0] in ("torch", "triton", "cupy")
        elif isinstance(node, ast.Attribute):
            speaks |= node.attr in ("cuda", "device")
        elif isinstance(node, ast.keyword):
            speaks |= node.arg == "device"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            speaks |= node.value.startswith("cuda")
    return imports and speaks


def find_timers(tree: ast.Module) -> list[SourceTimer]:
    """All timers of a file whose two ends lie in one function, in the order of their ends."""
    waiting, reading = _helpers(with_plain_clocks(tree, CLOCKS))
    found: list[SourceTimer] = []
    tensors: set[str] = set()  # of the module, which comes first and whose names its functions see
    for name, body in _scopes(tree):
        scope = _Scope(name, waiting, reading, tensors)
        found.extend(scope.follow(body))
        tensors = scope.tensors if name == "<module>" else tensors
    return sorted(found, key=lambda timer: (timer.end.line, timer.start.line))


def find_pairs(tree: ast.Module) -> list[tuple[Read, Read, bool]]:
    """(start, end, collected) of all timers that the text subtracts, those kept in attributes between methods too."""
    pairs = [(timer.start, timer.end, timer.collected) for timer in find_timers(tree) if not timer.events]
    kept: dict[str, list[Read]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _is_clock(node.value):
            for target in node.targets:
                if isinstance(target, ast.Attribute):
                    kept.setdefault(target.attr, []).append(_read(node.value))
    seen = {end for _, end, _ in pairs}
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and isinstance(node.right, ast.Attribute):
            end = _read(node.left) if isinstance(node.left, ast.Call) and _is_clock(node.left) else None
            if end is not None and end not in seen:
                pairs += [(start, end, True) for start in kept.get(node.right.attr, ())]
    return pairs


def find_blocking_switch(tree: ast.Module) -> list[Read]:
    """Where a program switches CUDA_LAUNCH_BLOCKING on for itself."""
    found = []
    for node in ast.walk(tree):
        texts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)] if isinstance(node, ast.stmt) else []
        plain = isinstance(node, ast.Assign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
        if plain and "CUDA_LAUNCH_BLOCKING" in texts and ("1" in texts or 1 in texts):
            assert isinstance(node, ast.stmt)
            found.append(Read(node.lineno, node.col_offset + 1, (node.end_col_offset or 0) + 1, ""))
    return found


def _scopes(tree: ast.Module) -> Iterator[tuple[str, list[ast.stmt]]]:
    yield "<module>", tree.body
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.body


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _is_clock(node: ast.Call) -> bool:
    if isinstance(node.func, ast.Attribute):
        owner = node.func.value
        if node.func.attr in ("now", "utcnow"):
            return ast.unparse(owner) in ("datetime", "datetime.datetime", "dt.datetime")
        return node.func.attr in CLOCKS and isinstance(owner, ast.Name) and owner.id in ("time", "timeit", "_time")
    return isinstance(node.func, ast.Name) and node.func.id in CLOCKS - {"time"} | {"time_ns"}


def _waits(node: ast.Call, waiting: frozenset[str]) -> bool:
    name = _called(node)
    if isinstance(node.func, ast.Name) and name in _WAITING_BUILTINS:
        return bool(node.args) and not isinstance(node.args[0], ast.Constant)
    return name in WAITS or name in waiting or any(k.arg == "blocking" for k in node.keywords)


def _helpers(tree: ast.Module) -> tuple[frozenset[str], frozenset[str]]:
    """Functions of the file that wait for the GPU, and those that just read a clock (having waited or not)."""
    bodies: dict[str, list[ast.Call]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            bodies[node.name] = [call for call in ast.walk(node) if isinstance(call, ast.Call)]
    waiting: frozenset[str] = frozenset()
    while True:
        more = frozenset(name for name, calls in bodies.items() if any(_waits(call, waiting) for call in calls))
        if more == waiting:
            break
        waiting = more
    reading = frozenset(
        name for name, calls in bodies.items() if any(map(_is_clock, calls)) and len(calls) <= 3 + (name in waiting)
    )
    return waiting, reading


@dataclass
class _Open:
    read: Read
    launches: int = 0
    waited: bool = True
    clean: bool = True


class _Scope:
    """Follows one function's statements and keeps what each name holds."""

    def __init__(self, name: str, waiting: frozenset[str], reading: frozenset[str], tensors: set[str]) -> None:
        self.name = name
        self.waiting = waiting
        self.reading = reading
        self.names: dict[str, _Open] = {}
        self.events: dict[str, _Open] = {}
        self.happened: dict[str, bool] = {}  # event -> whether something waited since it was recorded
        self.tensors = set(tensors)
        self.ended: dict[str, tuple[_Open, dict[int, _Open]]] = {}
        self.unfinished = False
        self.found: list[SourceTimer] = []
        self.collecting = False

    def follow(self, body: list[ast.stmt]) -> list[SourceTimer]:
        for statement in body:
            self._statement(statement)
        return self.found

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom):
            return
        if isinstance(node, ast.If):
            # `if cuda: synchronize()` and `if not cuda: return` are how portable timers look: a wait in one arm counts.
            self._test(node.test)
            for part in (*node.body, *node.orelse):
                self._statement(part)
            return
        if isinstance(node, ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith | ast.Try):
            self._block(node)
            return
        if isinstance(node, ast.Assert):
            self._test(node.test)
            return
        value = getattr(node, "value", None)
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(value, ast.Call) and self._reads(value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            self._expression(value)
            for target in targets:
                self._start(ast.unparse(target), _read(value))
            return
        self.collecting = isinstance(node, ast.AugAssign) or (
            isinstance(value, ast.Call) and _called(value) in ("append", "update", "add", "extend")
        )
        for child in ast.iter_child_nodes(node):
            self._expression(child)
        self.collecting = False
        if isinstance(node, ast.Assign) and self._makes_tensor(node.value):
            self.tensors.update(ast.unparse(target) for target in node.targets)

    def _makes_tensor(self, value: ast.expr) -> bool:
        """Whether a value comes from torch or from a name that does: a guess, good enough for arithmetic on it."""
        names = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
        is_class = isinstance(value, ast.Call) and _called(value)[:1].isupper()
        moved = isinstance(value, ast.Call) and _called(value) == "cuda"
        return not is_class and bool(moved or names & self.tensors or "torch" in names)

    def _test(self, node: ast.expr) -> None:
        """A condition; one on a tensor waits for its value."""
        self._expression(node)
        calls = [_called(inner) for inner in ast.walk(node) if isinstance(inner, ast.Call)]
        names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        if names & self.tensors or any(name not in _HOST_CALLS for name in calls):
            self._wait()

    def _block(self, node: ast.stmt) -> None:
        if (iterated := getattr(node, "iter", None)) is not None:
            self._expression(iterated)
        if isinstance(node, ast.While):
            self._test(node.test)
        for item in getattr(node, "items", []):
            self._expression(item.context_expr)
        for part in ("body", "handlers", "orelse", "finalbody"):
            for inner in getattr(node, part, []):
                for statement in inner.body if isinstance(inner, ast.ExceptHandler) else [inner]:
                    self._statement(statement)

    def _reads(self, call: ast.Call) -> bool:
        return _is_clock(call) or (isinstance(call.func, ast.Name) and call.func.id in self.reading)

    def _start(self, name: str, read: Read) -> None:
        self.names[name] = _Open(read, clean=not self.unfinished)
        # What a name held while another read was open is needed when both are subtracted later.
        self.ended[name] = (
            self.names[name],
            {id(o): _Open(o.read, o.launches, o.waited, o.clean) for o in self._open()},
        )

    def _open(self) -> list[_Open]:
        return [*self.names.values(), *self.events.values()]

    def _expression(self, node: ast.AST) -> None:
        """Visit calls in the order in which they run: arguments before the call that takes them."""
        if isinstance(node, ast.Lambda | ast.FunctionDef):
            return
        for child in ast.iter_child_nodes(node):
            self._expression(child)
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.Sub):
                self._subtract(node)
            if isinstance(node.op, ast.MatMult) or self._on_tensors(node):
                self._launch()
        elif isinstance(node, ast.Call):
            self._call(node)

    def _on_tensors(self, node: ast.BinOp) -> bool:
        return any(isinstance(side, ast.Name) and side.id in self.tensors for side in (node.left, node.right))

    def _call(self, node: ast.Call) -> None:
        name = _called(node)
        if name == "elapsed_time" and isinstance(node.func, ast.Attribute) and node.args:
            self._elapsed(ast.unparse(node.func.value), ast.unparse(node.args[0]), _read(node))
        if self._reads(node) and not _waits(node, self.waiting):
            return
        if name == "record" and isinstance(node.func, ast.Attribute):
            event = ast.unparse(node.func.value)
            self.events[event] = _Open(_read(node))
            self.happened[event] = not self.unfinished
        elif _waits(node, self.waiting):
            self._wait()
        elif name and name not in _HOST_CALLS:
            self._launch(dirties=name not in _FACTORIES)

    def _wait(self) -> None:
        self.unfinished = False
        self.happened = dict.fromkeys(self.happened, True)
        for timer in self._open():
            timer.waited = True

    def _launch(self, dirties: bool = True) -> None:
        self.unfinished |= dirties
        for timer in self._open():
            timer.launches += 1
            timer.waited = False

    def _subtract(self, node: ast.BinOp) -> None:
        start = self.names.get(ast.unparse(node.right))
        if start is None:
            return
        if isinstance(node.left, ast.Call) and self._reads(node.left):
            self._emit(start, _read(node.left))
            return
        ended = self.ended.get(ast.unparse(node.left))
        if ended is not None and id(start) in ended[1]:
            self._emit(ended[1][id(start)], ended[0].read)

    def _elapsed(self, start: str, end: str, asked: Read) -> None:
        if start in self.events and end in self.events:
            begun, happened = self.events[start], self.happened[end]
            self.found.append(SourceTimer(begun.read, asked, self.name, begun.launches, happened, True, events=True))

    def _emit(self, start: _Open, end: Read) -> None:
        timer = SourceTimer(
            start.read, end, self.name, start.launches, start.waited, start.clean, collected=self.collecting
        )
        self.found.append(timer)


def _read(node: ast.Call) -> Read:
    return Read(node.lineno, node.col_offset + 1, (node.end_col_offset or node.col_offset) + 1, _called(node))
