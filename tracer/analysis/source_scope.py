"""Follows the statements of one function in the order of the text, and sees its timers begin and end.

- Both arms of an `if` are followed, a loop's body once, and once more where it keeps a read for its next turn.
- A timer around a loop whose body waits is left alone: what is unfinished in the end is one turn of many.
- Methods that keep a clock's value, and context managers that read one, are followed where they are used.
"""

from __future__ import annotations

import ast

from tracer.analysis.open_timers import Open, OpenTimers, SourceTimer
from tracer.analysis.source_calls import Calls, Function, Read, method_of, python_timeit, read_of
from tracer.analysis.source_shapes import called, differenced, is_rest, yields
from tracer.analysis.tensor_names import TensorNames


class Scope:
    """Follows one function's statements and keeps what each name holds."""

    def __init__(
        self,
        name: str,
        calls: Calls,
        tensors: set[str],
        waiting_arguments: frozenset[str] = frozenset(),
        owner: ast.ClassDef | None = None,
    ) -> None:
        self.name = name
        self.owner = owner  # the class that this is a method of
        self.calls = calls
        self.waiting_arguments = waiting_arguments
        self.timers = OpenTimers()
        self.names = TensorNames(calls, tensors)
        self.collecting = False  # what is worked out is added to others, so that a cold first one counts
        self.aside = False  # or it surely is not
        self.comparing = False
        self.prefix = ""  # of the names of a function that is followed where it is called
        self.receiver = ""  # what `self` is there
        self.yielded: list[ast.stmt] = []  # the body of the `with` that a generator is followed for
        self.differenced: set[str] = set()  # lists whose neighbours are subtracted

    def follow(self, body: list[ast.stmt]) -> list[SourceTimer]:
        """All timers that end in these statements."""
        self.differenced = {name for statement in body for name in differenced(statement)}
        self._all(body)
        return self.timers.found

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
            if isinstance(value, ast.Call) and called(value) in ("append", "update", "add", "extend"):
                self.collecting = ast.unparse(value.func).rpartition(".")[0] not in self.calls.proof
                self.aside = not self.collecting
            for child in ast.iter_child_nodes(node):
                self._expression(child)
            self.collecting = self.aside = False

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for one, its in zip(target.elts, value.elts, strict=True):
                self._assign(one, its)
            return
        before = self.timers.launched
        self.collecting = isinstance(target, ast.Name) and target.id in self.calls.gathered
        self.aside = not self.collecting
        self._expression(value)
        self.collecting = self.aside = False
        read = self._read(value.elts[-1] if isinstance(value, ast.List) and value.elts else value)
        if read is not None:
            self.timers.start(self._key(target), read)
        elif (kept := self._key(value)) in self.timers.kept:
            self.timers.rename(kept, self._key(target))
        self.names.assign(target, value, launched=self.timers.launched > before)

    def _add(self, node: ast.AugAssign) -> None:
        """`took += clock() - t0`; also `took -= clock()` before and `took += clock()` after."""
        self.collecting = True
        self._expression(node.value)
        read, name = self._read(node.value), self._key(node.target)
        if read is not None and isinstance(node.op, ast.Sub):
            self.timers.start(name, read)
        elif read is not None and isinstance(node.op, ast.Add):
            self._subtract(name, read)
        elif isinstance(node.target, ast.Name) and node.target.id in self.names.tensors:
            self.timers.launch()
        self.collecting = False

    def _test(self, node: ast.expr) -> None:
        """A condition; one on a tensor waits for its value."""
        self._expression(node)
        calls = [inner for inner in ast.walk(node) if isinstance(inner, ast.Call) and not self.calls.reads(inner)]
        if self.names.has_value(node) or any(map(self.calls.launches, calls)):
            self.timers.wait()

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        waits = any(isinstance(inner, ast.Call) and self.calls.waits(inner) for s in node.body for inner in ast.walk(s))
        if isinstance(node, ast.For | ast.AsyncFor):
            self._expression(node.iter)
        before = dict(self.timers.kept)
        for inner in (inner for statement in node.body for inner in ast.walk(statement)):
            for target in inner.targets if isinstance(inner, ast.Assign) else ():
                if (timer := before.get(self._key(target))) is not None:
                    timer.settle()  # it is the start of the first turn alone
        self._turn(node, self.timers.running() if waits else [])
        # A read that is kept for the next turn: `took.update(clock() - end); end = clock()`.
        carried = [timer for name, timer in self.timers.kept.items() if name in before and before[name] is not timer]
        if carried and self.timers.only is None:
            self.timers.only = set(carried)
            for timer in carried:  # what runs at its start is as much as what runs at its end
                timer.settle()
            self._turn(node, carried if waits else [])
            self.timers.only = None
        self._all(node.orelse)

    def _turn(self, node: ast.For | ast.AsyncFor | ast.While, excused: list[Open]) -> None:
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
            elif function is not None and len(node.items) == 1 and any(yields(inner) for inner in ast.walk(function)):
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
        if isinstance(node, ast.Compare) or is_rest(node):
            comparing, self.comparing = self.comparing, True
            for child in ast.iter_child_nodes(node):
                self._expression(child)
            self.comparing = comparing
            return
        for child in ast.iter_child_nodes(node):
            self._expression(child)
        if isinstance(node, ast.NamedExpr):
            if (read := self._read(node.value)) is not None:
                self.timers.start(self._key(node.target), read)
        elif isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.Sub):
                self._subtract(self._key(node.right), self._read(node.left) or self._key(node.left))
            if self.names.computes(node):
                self.timers.launch()
        elif isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name):
            self._show(node.value)
        elif isinstance(node, ast.Call):
            self._call(node)

    def _call(self, node: ast.Call) -> None:
        name, owner = called(node), node.func.value if isinstance(node.func, ast.Attribute) else None
        if name == "elapsed_time" and owner is not None and node.args:
            events = self._key(owner), self._key(node.args[0])
            self.timers.elapsed(*events, read_of(node), self.name, collected=not self.aside)
        method = self.calls.timing_method(node, self.owner)
        if method is not None and owner is not None and not self.calls.reads(node):
            self._inline(method, self._key(owner))
        elif self.calls.reads(node) and not self.calls.waits(node):
            pass
        elif name == "record" and owner is not None:
            self.timers.record(self._key(owner), read_of(node))
        elif name in ("wait", "synchronize") and owner is not None and self.timers.is_event(self._key(owner)):
            if name == "synchronize":  # `wait` is for the stream
                self.timers.wait_for(self._key(owner))
        elif python_timeit(node):
            self._timeit(node)
        elif self.calls.waits(node) or self.names.downloads(node) or (owner is None and name in self.waiting_arguments):
            if name in ("cpu", "item", "tolist", "numpy", "to"):  # a copy is work, too
                self.timers.launch()
            self.timers.wait()
        elif name in ("print", "str", "repr"):
            for argument in node.args:
                self._show(argument)
        elif name == "append" and owner is not None and node.args:
            self._append(self._key(owner), node.args[0])
        elif self.names.launches(node):
            # `get_batch()` uploads little, `bold("text")` nothing.
            small = "get" in name.split("_") or any(isinstance(argument, ast.Constant) for argument in node.args[:1])
            self.timers.launch("" if small else ast.unparse(node.func), known=not small and self.names.surely(node))

    def _show(self, node: ast.AST) -> None:
        """To print a tensor is to read it."""
        if isinstance(node, ast.Name) and self.names.has_value(node):
            self.timers.wait()

    def _append(self, name: str, value: ast.expr) -> None:
        """Clock reads in a list whose neighbours are subtracted."""
        read = self._read(value)
        if read is not None and name in self.differenced:
            self._subtract(name, read)
            self.timers.start(name, read)

    def _timeit(self, node: ast.Call) -> None:
        """`timeit.timeit(...)` is a timer by itself: around a text, a lambda or a function of the file."""
        self.timers.start("timeit()", read_of(node))
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
        self._subtract("timeit()", read_of(node))

    # Timers

    def _subtract(self, kept: str, end: Read | str) -> None:
        collected = self.collecting or bool(self.prefix)  # what a helper finds out is told to others
        self.timers.subtract(kept, end, self.name, collected=collected, deadline=self.comparing)

    def _key(self, node: ast.AST) -> str:
        """What a clock's value is kept under: a name, an attribute, an element; '' for anything else."""
        if not isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
            return ""
        text = node.id if isinstance(node, ast.Name) else ast.unparse(node)
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
