"""What the names of a function hold, as far as timers care: tensors on the GPU, in ordinary memory, or perhaps."""

from __future__ import annotations

import ast

from tracer.analysis.source_calls import FACTORIES, PLAIN, Calls, root_of, value_names
from tracer.analysis.source_shapes import called


class TensorNames:
    """Names that hold tensors: a guess, good enough for arithmetic on them."""

    def __init__(self, calls: Calls, tensors: set[str]) -> None:
        self.calls = calls
        self.tensors = set(tensors)
        self.on_cpu: set[str] = set()  # tensors in ordinary memory
        self.results: set[str] = set()  # what came from calls that launched

    def assign(self, target: ast.expr, value: ast.expr, *, launched: bool) -> None:
        """Names are given a value; `launched`: by a call that launched something."""
        names = {node.id for node in ast.walk(target) if isinstance(node, ast.Name)} - self.calls.callables
        on_cpu, tensor = self.is_on_cpu(value), self._is_tensor(value)
        self.on_cpu = self.on_cpu | names if on_cpu else self.on_cpu - names
        self.results = self.results | names if launched else self.results - names
        self.tensors |= names if tensor else set()

    def launches(self, node: ast.Call) -> bool:
        """Whether a call that neither waits nor reads may leave work on the GPU."""
        return self.calls.launches_on_tensors(node, self.tensors | self.results) and not self.is_on_cpu(node)

    def surely(self, node: ast.Call) -> bool:
        """Whether what it launches is GPU work on a tensor that we know of."""
        names = {
            inner.id for part in (node.func, *node.args) for inner in ast.walk(part) if isinstance(inner, ast.Name)
        }
        return bool(names & self.tensors) and called(node) not in FACTORIES

    def computes(self, node: ast.BinOp) -> bool:
        """Whether arithmetic is GPU work."""
        sides = any(isinstance(side, ast.Name) and side.id in self.tensors for side in (node.left, node.right))
        return (sides or isinstance(node.op, ast.MatMult)) and not self.is_on_cpu(node)

    def has_value(self, node: ast.expr) -> bool:
        """Whether an expression needs the value of a tensor."""
        return bool(set(value_names(node)) & (self.tensors | self.results))

    def downloads(self, node: ast.Call) -> bool:
        """`host.copy_(y)` into ordinary memory, which waits."""
        into_memory = (
            called(node) == "copy_" and isinstance(node.func, ast.Attribute) and self.is_on_cpu(node.func.value)
        )
        return into_memory and not self.calls.does_not_block(node)

    def is_on_cpu(self, node: ast.expr) -> bool:
        """Whether this is a tensor in ordinary memory, or made from one by torch."""
        if isinstance(node, ast.Name):
            return node.id in self.on_cpu
        if isinstance(node, ast.Tuple):
            return any(map(self.is_on_cpu, node.elts))
        if isinstance(node, ast.BinOp):
            return self.is_on_cpu(node.left) or self.is_on_cpu(node.right)
        if not isinstance(node, ast.Call) or called(node) in ("to", "cuda"):
            return False
        if self.calls.makes_cpu_tensor(node):
            return True
        root = root_of(node)
        return root in self.on_cpu or (root in self.calls.torch_modules and any(map(self.is_on_cpu, node.args)))

    def _is_tensor(self, value: ast.expr) -> bool:
        """Whether a value comes from torch, or from a name that does."""
        if isinstance(value, ast.Call):
            if self.calls.waits(value):
                return False
            names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
            by_torch = bool(names & (self.tensors | self.calls.torch_modules))
            return called(value) in ("cuda", "to") or (by_torch and self.launches(value))
        if isinstance(value, ast.Name):
            return value.id in self.tensors
        if isinstance(value, ast.Attribute):
            return value.attr not in PLAIN and self._is_tensor(value.value)
        if isinstance(value, ast.BinOp | ast.IfExp | ast.Tuple | ast.Subscript | ast.UnaryOp):
            parts = (part for part in ast.iter_child_nodes(value) if isinstance(part, ast.expr))
            return not self.is_on_cpu(value) and any(map(self._is_tensor, parts))
        return False
