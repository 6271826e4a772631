"""Finds timers in source text: which clock reads are subtracted, and whether something waits for the GPU in between.

Works on the syntax tree alone, runs nothing, and is conservative (what a call does: `source_calls`).

- Control flow is followed in the order of the text: both arms of an `if`, a loop's body once, and
  once more where it keeps a read for its next turn.
- A timer around a loop whose body waits is left alone: what is unfinished in the end is one turn of many.
- Methods that keep a clock's value, and context managers that read one, are followed where they are used.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tracer.analysis.source_calls import (
    FACTORIES,
    Calls,
    Function,
    Read,
    called,
    is_clock,
    method_of,
    python_timeit,
    read_of,
    root_of,
    value_names,
)


@dataclass(frozen=True, slots=True)
class SourceTimer:
    """Two clock reads (or CUDA events) that the text subtracts."""

    start: Read
    end: Read
    function: str
    launches: int  # calls in between that look like GPU work
    waited: bool  # something waits between the last of them and the end
    clean_start: bool  # nothing looks like unfinished GPU work at the start
    events: bool = False  # CUDA events with elapsed_time
    collected: bool = False  # the difference is appended or added to others, so that a cold first one counts
    deadline: bool = False  # the difference is only compared, to stop in time
    kept: str = ""  # the name that holds the start

    @property
    def stopped_early(self) -> bool:
        """Whether a clock is read at its end while the work launched on the way may still run."""
        return self.launches > 0 and not (self.waited or self.events or self.deadline)

    @property
    def started_dirty(self) -> bool:
        """Whether it waits at its end, but older work may run at its start."""
        return self.launches > 0 and self.waited and not (self.clean_start or self.events or self.deadline)


def find_timers(tree: ast.Module) -> list[SourceTimer]:
    """All timers of a file, in the order of their ends; one for each pair of places, the worst of its uses."""
    calls = Calls(tree)
    found: dict[tuple[Read, Read], SourceTimer] = {}
    tensors: set[str] = set()  # of the module, which comes first and whose names its functions see
    for name, body, waiting_arguments in _scopes(tree, calls):
        scope = _Scope(name, calls, tensors, waiting_arguments)
        for timer in scope.follow(body):
            place = timer.start, timer.end
            found[place] = _worse(found[place], timer) if place in found else timer
        tensors = scope.tensors if name == "<module>" else tensors
    return sorted(found.values(), key=lambda timer: (timer.end.line, timer.start.line))


@dataclass(frozen=True, slots=True)
class Pair:
    """Two places of which the text subtracts what a clock said; no start for a deadline, which measures nothing."""

    start: Read | None
    end: Read
    kept: str  # the name that holds the start: of several starts with one name, the latest counts
    collected: bool = False


def find_pairs(tree: ast.Module) -> list[Pair]:
    """The places of all timers that the text subtracts, those kept in attributes between methods too."""
    timers = [timer for timer in find_timers(tree) if not timer.events]
    pairs = [Pair(None if timer.deadline else timer.start, timer.end, timer.kept, timer.collected) for timer in timers]
    kept: dict[str, list[Read]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and is_clock(node.value):
            for target in node.targets:
                if isinstance(target, ast.Attribute):
                    kept.setdefault(target.attr, []).append(read_of(node.value))
    seen = {pair.end for pair in pairs}
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and isinstance(node.right, ast.Attribute):
            end = read_of(node.left) if isinstance(node.left, ast.Call) and is_clock(node.left) else None
            if end is not None and end not in seen:
                name = node.right.attr
                pairs += [Pair(start, end, name, True) for start in kept.get(name, ())]
    return pairs


def _worse(one: SourceTimer, other: SourceTimer) -> SourceTimer:
    return replace(
        one,
        launches=one.launches + other.launches,
        waited=one.waited and other.waited,
        clean_start=one.clean_start and other.clean_start,
    )


def _scopes(tree: ast.Module, calls: Calls) -> Iterator[tuple[str, list[ast.stmt], frozenset[str]]]:
    """(name, statements, arguments that are functions which wait) of the module and of each function."""
    yield "<module>", tree.body, frozenset()
    waiting: dict[ast.AST, frozenset[str]] = {}
    for node in ast.walk(tree):  # the outer ones come first
        mine = waiting.get(node, frozenset())
        if isinstance(node, Function):
            if node.name in calls.given_waits:
                mine |= {argument.arg for argument in [*node.args.args, *node.args.kwonlyargs]}
            words = set(node.name.lower().split("_"))
            if "cpu" not in words or words & {"gpu", "cuda"}:
                yield node.name, node.body, mine
        waiting |= dict.fromkeys(ast.iter_child_nodes(node), mine)


@dataclass
class _Open:
    read: Read
    launches: int = 0
    waited: bool = True
    clean: bool = True
    before: frozenset[str] = frozenset()  # calls that may have left work behind, if they were GPU work at all
    excused: bool = False  # it runs over a loop that waits in each turn


class _Scope:
    """Follows one function's statements and keeps what each name holds."""

    def __init__(self, name: str, calls: Calls, tensors: set[str], waiting_arguments: frozenset[str]) -> None:
        self.name = name
        self.calls = calls
        self.waiting_arguments = waiting_arguments
        self.names: dict[str, _Open] = {}
        self.events: dict[str, _Open] = {}
        self.happened: dict[str, bool] = {}  # event -> whether something waited since it was recorded
        self.tensors = set(tensors)
        self.on_cpu: set[str] = set()  # tensors in ordinary memory
        self.results: set[str] = set()  # what came from calls that launched
        self.ended: dict[str, tuple[_Open, dict[int, _Open]]] = {}
        self.unfinished = False
        self.left: set[str] = set()  # calls that may have left work behind since the last wait
        self.launched = 0
        self.found: list[SourceTimer] = []
        self.collecting = False
        self.comparing = False
        self.prefix = ""  # of the names of a function that is followed where it is called
        self.receiver = ""  # what `self` is there
        self.yielded: list[ast.stmt] = []  # the body of the `with` that a generator is followed for
        self.only: set[int] | None = None  # in a loop's second turn, the timers that came from the first
        self.differenced: set[str] = set()  # lists whose neighbours are subtracted

    def follow(self, body: list[ast.stmt]) -> list[SourceTimer]:
        self.differenced = {name for statement in body for name in _differenced(statement)}
        self._all(body)
        return self.found

    def _all(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    # Statements

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, Function | ast.ClassDef | ast.Import | ast.ImportFrom):
            return
        if isinstance(node, ast.If):
            # `if cuda: synchronize()` and `if not cuda: return` are how portable timers look: a wait in one arm counts.
            self._test(node.test)
            self._all([*node.body, *node.orelse])
        elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
            self._loop(node)
        elif isinstance(node, ast.With | ast.AsyncWith):
            self._with(node)
        elif isinstance(node, ast.Try | ast.TryStar):
            for part in (node.body, *(handler.body for handler in node.handlers), node.orelse, node.finalbody):
                self._all(part)
        elif isinstance(node, ast.Match):
            self._expression(node.subject)
            for case in node.cases:
                self._all(case.body)
        elif isinstance(node, ast.Assert):
            self._test(node.test)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield) and self.yielded:
            body, self.yielded = self.yielded, []
            outer = self.prefix, self.receiver
            self.prefix = self.receiver = ""
            self._all(body)
            self.prefix, self.receiver = outer
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self._assign(target, node.value)
        elif isinstance(node, ast.AugAssign):
            self._add(node)
        else:
            value = getattr(node, "value", None)
            self.collecting = isinstance(value, ast.Call) and called(value) in ("append", "update", "add", "extend")
            for child in ast.iter_child_nodes(node):
                self._expression(child)
            self.collecting = False

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for one, its in zip(target.elts, value.elts, strict=True):
                self._assign(one, its)
            return
        before = self.launched
        self._expression(value)
        name = self._key(target)
        read = self._read(value.elts[-1] if isinstance(value, ast.List) and value.elts else value)
        if read is not None:
            self._start(name, read)
        elif (kept := self._key(value)) in self.names:
            self.names[name] = self.names[kept]
            if kept in self.ended:
                self.ended[name] = self.ended[kept]
        names = {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
        for group, belongs in (
            (self.on_cpu, self._on_cpu(value)),
            (self.results, self.launched > before),
            (self.tensors, self._makes_tensor(value)),
        ):
            group |= names if belongs else set()
            if group is not self.tensors and not belongs:
                group -= names

    def _add(self, node: ast.AugAssign) -> None:
        """`took += clock() - t0`; also `took -= clock()` before and `took += clock()` after."""
        self.collecting = True
        self._expression(node.value)
        read, name = self._read(node.value), self._key(node.target)
        if read is not None and isinstance(node.op, ast.Sub):
            self._start(name, read)
        elif read is not None and isinstance(node.op, ast.Add) and name in self.names:
            self._emit(name, self.names[name], read)
        elif isinstance(node.target, ast.Name) and node.target.id in self.tensors:
            self._launch()
        self.collecting = False

    def _makes_tensor(self, value: ast.expr) -> bool:
        """Whether a value comes from torch or from a name that does: a guess, good enough for arithmetic on it."""
        names = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
        if isinstance(value, ast.Call):
            moved = called(value) in ("cuda", "to")
            if self.calls.waits(value) or not (moved or self._launches(value)):
                return False
            return moved or bool(names & (self.tensors | self.calls.torch_modules))
        return not self._on_cpu(value) and bool(names & (self.tensors | self.calls.torch_modules))

    def _launches(self, node: ast.Call) -> bool:
        return self.calls.launches_on_tensors(node, self.tensors | self.results) and not self._on_cpu(node)

    def _on_cpu(self, node: ast.expr) -> bool:
        """Whether this is a tensor in ordinary memory, or made from one by torch."""
        if isinstance(node, ast.Name):
            return node.id in self.on_cpu
        if isinstance(node, ast.Tuple):
            return any(map(self._on_cpu, node.elts))
        if isinstance(node, ast.BinOp):
            return self._on_cpu(node.left) or self._on_cpu(node.right)
        if not isinstance(node, ast.Call) or called(node) in ("to", "cuda"):
            return False
        if self.calls.makes_cpu_tensor(node):
            return True
        root = root_of(node)
        return root in self.on_cpu or (root in self.calls.torch_modules and any(map(self._on_cpu, node.args)))

    def _test(self, node: ast.expr) -> None:
        """A condition; one on a tensor waits for its value."""
        self._expression(node)
        calls = [inner for inner in ast.walk(node) if isinstance(inner, ast.Call) and not self.calls.reads(inner)]
        if set(value_names(node)) & (self.tensors | self.results) or any(map(self.calls.launches, calls)):
            self._wait()

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        waits = any(isinstance(inner, ast.Call) and self.calls.waits(inner) for s in node.body for inner in ast.walk(s))
        if isinstance(node, ast.For | ast.AsyncFor):
            self._expression(node.iter)
        before = dict(self.names)
        self._turn(node, self._open() if waits else [])
        # A read that is kept for the next turn: `took.update(clock() - end); end = clock()`.
        carried = [timer for name, timer in self.names.items() if name in before and before[name] is not timer]
        if carried and self.only is None:
            self.only = {id(timer) for timer in carried}
            for timer in carried:  # what runs at its start is as much as what runs at its end
                timer.clean, timer.before = True, frozenset()
            self._turn(node, carried if waits else [])
            self.only = None
        self._all(node.orelse)

    def _turn(self, node: ast.For | ast.AsyncFor | ast.While, excused: list[_Open]) -> None:
        excused = [timer for timer in excused if not timer.excused]
        for timer in excused:
            timer.excused = timer.waited = True
        if isinstance(node, ast.While):
            self._test(node.test)
        self._all(node.body)
        for timer in excused:
            timer.excused = False

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        after: list[tuple[ast.FunctionDef, str]] = []
        for item in node.items:
            value = item.context_expr
            name = called(value) if isinstance(value, ast.Call) else ""
            function = self.calls.functions.get(name)
            owner = self.calls.classes.get(name) or self.calls.made.get(ast.unparse(value))
            if owner is not None:
                receiver = self._key(item.optional_vars or value)
                enter, leave = method_of(owner, "__enter__"), method_of(owner, "__exit__")
                if enter is not None and leave is not None:
                    self._inline(enter, receiver)
                    after.append((leave, receiver))
            elif function is not None and len(node.items) == 1 and any(_yields(inner) for inner in ast.walk(function)):
                self.yielded = node.body
                self._inline(function, "")
                return
            else:
                self._expression(value)
        self._all(node.body)
        for leave, receiver in reversed(after):
            self._inline(leave, receiver)

    def _inline(self, function: Function, receiver: str) -> None:
        """Follow a function of the file where it is used; its names are kept apart from ours."""
        if self.prefix:  # one level is what timers need
            return
        outer = self.name
        self.name, self.prefix, self.receiver = function.name, f"{function.name}:", receiver
        self._all(function.body)
        self.name, self.prefix, self.receiver = outer, "", ""

    # Expressions

    def _expression(self, node: ast.AST) -> None:
        """Visit calls in the order in which they run: arguments before the call that takes them."""
        if isinstance(node, ast.Lambda | ast.FunctionDef):
            return
        if isinstance(node, ast.Compare):
            comparing, self.comparing = self.comparing, True
            for child in ast.iter_child_nodes(node):
                self._expression(child)
            self.comparing = comparing
            return
        for child in ast.iter_child_nodes(node):
            self._expression(child)
        if isinstance(node, ast.NamedExpr):
            if (read := self._read(node.value)) is not None:
                self._start(self._key(node.target), read)
        elif isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.Sub):
                self._subtract(node)
            if not self._on_cpu(node) and (isinstance(node.op, ast.MatMult) or self._on_tensors(node)):
                self._launch()
        elif isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name):
            self._show(node.value)
        elif isinstance(node, ast.Call):
            self._call(node)

    def _on_tensors(self, node: ast.BinOp) -> bool:
        return any(isinstance(side, ast.Name) and side.id in self.tensors for side in (node.left, node.right))

    def _call(self, node: ast.Call) -> None:
        name, owner = called(node), node.func.value if isinstance(node.func, ast.Attribute) else None
        if name == "elapsed_time" and owner is not None and node.args:
            self._elapsed(self._key(owner), self._key(node.args[0]), read_of(node))
        method = self.calls.method(node)
        if method is not None and owner is not None and any(map(is_clock, ast.walk(method))):
            self._inline(method, self._key(owner))
        elif self.calls.reads(node) and not self.calls.waits(node):
            pass
        elif owner is not None and (
            name == "record" or (name in ("wait", "synchronize") and self._key(owner) in self.events)
        ):
            self._on_event(name, self._key(owner), node)
        elif python_timeit(node):
            self._timeit(node)
        elif self._call_waits(node):
            if name in ("cpu", "item", "tolist", "numpy", "to"):  # a copy is work, too
                self._launch()
            self._wait()
        elif name in ("print", "str", "repr"):
            for argument in node.args:
                self._show(argument)
        elif name == "append" and owner is not None and node.args:
            self._append(self._key(owner), node.args[0])
        elif self._launches(node):
            on_tensors = any(
                inner.id in self.tensors
                for part in (node.func, *node.args)
                for inner in ast.walk(part)
                if isinstance(inner, ast.Name)
            )
            self._launch(ast.unparse(node.func), known=on_tensors and name not in FACTORIES)

    def _call_waits(self, node: ast.Call) -> bool:
        into_memory = called(node) == "copy_" and isinstance(node.func, ast.Attribute) and self._on_cpu(node.func.value)
        mine = isinstance(node.func, ast.Name) and node.func.id in self.waiting_arguments
        return self.calls.waits(node) or mine or (into_memory and not self.calls.does_not_block(node))

    def _show(self, node: ast.AST) -> None:
        """To print a tensor is to read it."""
        if isinstance(node, ast.Name) and node.id in self.tensors | self.results:
            self._wait()

    def _append(self, name: str, value: ast.expr) -> None:
        """Clock reads in a list whose neighbours are subtracted."""
        read = self._read(value)
        if read is not None and name in self.differenced:
            if name in self.names:
                self._emit(name, self.names[name], read)
            self._start(name, read)

    def _timeit(self, node: ast.Call) -> None:
        """`timeit.timeit(...)` is a timer by itself: around a text, a lambda or a function of the file."""
        timer = self.names["timeit"] = _Open(read_of(node))
        for work in [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "stmt")]:
            if isinstance(work, ast.Lambda):
                self._expression(work.body)
            elif isinstance(work, ast.Constant) and isinstance(work.value, str):
                try:
                    self._all(ast.parse(work.value).body)
                except SyntaxError:
                    return
            elif isinstance(work, ast.Name):
                self._call(ast.copy_location(ast.Call(work, [], []), node))
        self._emit("timeit", timer, timer.read)
        del self.names["timeit"]

    # What happens to timers

    def _key(self, node: ast.AST) -> str:
        text = ast.unparse(node)
        if self.receiver and text.startswith("self."):
            return self.receiver + text[4:]
        return self.prefix + text

    def _read(self, node: ast.AST) -> Read | None:
        """The clock that a value was read from: `clock()`, `-clock()`, `round(clock() * 1000)`."""
        if isinstance(node, ast.Call):
            if self.calls.reads(node):
                return read_of(node)
            plain = isinstance(node.func, ast.Name) and node.func.id in ("int", "float", "round")
            return self._read(node.args[0]) if plain and node.args else None
        if isinstance(node, ast.UnaryOp):
            return self._read(node.operand)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div | ast.FloorDiv):
            return self._read(node.left)
        return None

    def _start(self, name: str, read: Read) -> None:
        self.names[name] = _Open(read, clean=not self.unfinished, before=frozenset(self.left))
        # What a name held while another read was open is needed when both are subtracted later.
        self.ended[name] = self.names[name], {id(timer): replace(timer) for timer in self._open()}

    def _open(self) -> list[_Open]:
        return [*self.names.values(), *self.events.values()]

    def _wait(self) -> None:
        self.unfinished = False
        self.left.clear()
        self.happened = dict.fromkeys(self.happened, True)
        for timer in self._open():
            timer.waited = True

    def _launch(self, call: str = "", known: bool = True) -> None:
        """Work is launched: by torch on a tensor that we know of, or by a call of which we know little."""
        self.unfinished |= known
        if "get" not in call.split("_"):  # `get_batch`: what it uploads is no work
            self.left.add(call)
        self.launched += 1
        for timer in {id(timer): timer for timer in self._open()}.values():
            timer.launches += 1
            timer.waited = timer.excused
            timer.clean &= not call or call not in timer.before  # the same was called just before, to warm up

    def _on_event(self, what: str, event: str, node: ast.Call) -> None:
        if what == "record":
            self.events[event] = _Open(read_of(node))
            self.happened[event] = not self.left
        elif what == "synchronize":
            if self.events[event].launches:  # work that was launched after the event may still run
                before = list(self.happened)[: list(self.happened).index(event) + 1]
                self.happened |= dict.fromkeys(before, True)
            else:
                self._wait()

    def _subtract(self, node: ast.BinOp) -> None:
        kept = self._key(node.right)
        start = self.names.get(kept)
        if start is None:
            return
        if (read := self._read(node.left)) is not None:
            self._emit(kept, start, read)
            return
        ended = self.ended.get(self._key(node.left))
        if ended is not None and id(start) in ended[1]:
            self._emit(kept, ended[1][id(start)], ended[0].read)

    def _elapsed(self, start: str, end: str, asked: Read) -> None:
        if start in self.events and end in self.events:
            begun, happened = self.events[start], self.happened[end]
            self.found.append(SourceTimer(begun.read, asked, self.name, begun.launches, happened, True, events=True))

    def _emit(self, kept: str, start: _Open, end: Read) -> None:
        if self.only is not None and id(self.names[kept]) not in self.only:
            return
        self.found.append(
            SourceTimer(
                start.read,
                end,
                self.name,
                start.launches,
                start.waited,
                start.clean,
                collected=self.collecting,
                deadline=self.comparing,
                kept=kept,
            )
        )


def _yields(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield)


def _differenced(tree: ast.AST) -> Iterator[str]:
    """Lists whose neighbours are subtracted: `zip(t, t[1:])`, `np.diff(t)`, `t[1] - t[0]`."""
    for node in ast.walk(tree):
        pair: list[ast.expr] = []
        if isinstance(node, ast.Call) and called(node) in ("zip", "diff", "pairwise"):
            pair = node.args
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            pair = [node.left, node.right] if isinstance(node.left, ast.Subscript) else []
        bases = {ast.unparse(side.value if isinstance(side, ast.Subscript) else side) for side in pair}
        if len(bases) == 1:
            yield from bases
