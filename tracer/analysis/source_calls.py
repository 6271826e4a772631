"""What a call in source text does to a timer: reads a clock, waits for the GPU, launches work, or none of these.

Nothing is imported or run, so this is a guess by names, made so that honest timers stay silent:

- functions of the same file are looked into, as far as a name leads to one
- a call into the standard library, numpy and the like launches nothing, nor does making an object
- a call that cannot be seen into waits if its name says so (`maybe_sync`), and else launches
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from tracer.analysis.source_shapes import called, gathered_names, proof_lists

CLOCKS = frozenset(
    f"{name}{suffix}"
    for name in ("time", "perf_counter", "monotonic", "process_time", "thread_time", "default_timer")
    for suffix in ("", "_ns")
)
# Calls after which the GPU work launched before is known to be done.
_WAITS = frozenset(
    {"synchronize", "item", "cpu", "tolist", "numpy", "asnumpy", "elapsed_time", "barrier", "block_until_ready"}
    | {"do_bench", "do_bench_cudagraph", "blocked_autorange", "adaptive_autorange", "timeit", "empty_cache", "nonzero"}
    | {"get_scale", "result", "allclose", "equal", "assert_close", "save", "save_pretrained", "save_file"}
)
_WAITING_METHODS = frozenset({"generate", "decode", "batch_decode"})  # of transformers, unless the file has its own
_WAITING_BUILTINS = frozenset({"float", "int", "bool"})
# The GPU waits, the host walks on; or nothing does.
_STREAM_WAITS = frozenset({"wait_stream", "wait_event", "record_stream", "set_sync_debug_mode"})
# Calls that make tensors and little else: what they leave running hardly dirties a start.
FACTORIES = frozenset(
    {"randn", "rand", "zeros", "ones", "empty", "full", "arange", "tensor", "randint", "eye", "linspace", "as_tensor"}
    | {"randn_like", "rand_like", "zeros_like", "ones_like", "empty_like", "half", "bfloat16", "from_numpy", "randperm"}
)
# Calls that launch nothing, so that a timer around them is none of our business.
_HOST_CALLS = frozenset(
    {"append", "extend", "insert", "pop", "get", "items", "keys", "values", "update", "format", "join", "split"}
    | {"replace", "strip", "startswith", "endswith", "open", "write", "read", "flush", "close", "exists", "mkdir"}
    | {"load", "loads", "dump", "dumps", "collect", "sleep", "info", "debug", "warning", "error", "log"}
    | {"add_scalar", "set_description", "set_postfix", "add_argument", "parse_args", "start", "stop", "submit"}
    | {"spawn", "is_alive", "get_rank", "get_world_size", "is_initialized", "record", "stream", "current_stream"}
    | {"device", "set_device", "device_count", "is_available", "get_device_name", "memory_allocated"}
    | {"max_memory_allocated", "reset_peak_memory_stats", "manual_seed", "no_grad", "inference_mode", "autocast"}
    | {"nullcontext", "compile", "eval", "train", "parameters", "requires_grad_", "state_dict", "load_state_dict"}
    | {"from_pretrained", "size", "dim", "numel", "element_size"}
)
# The same of lists and numbers; of a tensor they are GPU work.
_HOST_OR_TENSOR = frozenset({"max", "min", "sum", "sort", "round", "abs", "any", "all", "copy"})
_HOST_WORDS = frozenset(
    {"compile", "precompile", "load", "read", "write", "parse", "tokenize", "download", "export", "log", "plot"}
    | {"config", "codegen", "serialize", "deserialize", "setup", "build", "create", "print"}
)
_HOST_MODULES = sys.stdlib_module_names | {"numpy", "pandas", "tqdm", "wandb", "yaml", "psutil", "matplotlib", "PIL"}
PLAIN = frozenset({"shape", "dtype", "device", "is_cuda", "ndim", "requires_grad", "training", "nbytes"})  # no values


@dataclass(frozen=True, slots=True)
class Read:
    """A call of a clock in the text."""

    line: int
    column: int  # 1-based
    end_column: int  # one past the last
    clock: str


Function = ast.FunctionDef | ast.AsyncFunctionDef


def read_of(node: ast.Call) -> Read:
    """Where a call stands."""
    return Read(node.lineno, node.col_offset + 1, (node.end_col_offset or node.col_offset) + 1, called(node))


def is_clock(node: ast.AST) -> bool:
    """Whether this is a call of a clock by its plain name."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute):
        owner = node.func.value
        if node.func.attr in ("now", "utcnow"):
            return ast.unparse(owner) in ("datetime", "datetime.datetime", "dt.datetime")
        return node.func.attr in CLOCKS and isinstance(owner, ast.Name) and owner.id in ("time", "timeit", "_time")
    return isinstance(node.func, ast.Name) and node.func.id in CLOCKS - {"time"} | {"time_ns"}


def value_names(node: ast.AST) -> Iterator[str]:
    """Names whose values an expression uses: not `y` in `y.shape` or `y is None`."""
    if isinstance(node, ast.Name):
        yield node.id
    asked = isinstance(node, ast.Compare) and all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops)
    if not asked and not (isinstance(node, ast.Attribute) and node.attr in PLAIN):
        for child in ast.iter_child_nodes(node):
            yield from value_names(child)


class Calls:
    """What the text of one file, with its clocks by their plain names, says about its calls."""

    def __init__(self, tree: ast.Module) -> None:
        nodes = list(ast.walk(tree))
        self.classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
        self.functions = {node.name: node for node in nodes if isinstance(node, Function)}
        self.made = {  # what a variable holds, if it is an object of a class of this file
            ast.unparse(target): self.classes[node.value.func.id]
            for node in nodes
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
            if isinstance(node.value.func, ast.Name) and node.value.func.id in self.classes
            for target in node.targets
        }
        self.cpu_by_default = not any(_sets_default_device(node) for node in nodes)
        self.proof = proof_lists(tree)
        self.gathered = set(gathered_names(tree.body, self.proof))
        self.callables = {
            node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        self.host_modules = set(_modules(nodes, _HOST_MODULES))
        self.torch_modules = {"torch", *_modules(nodes, {"torch"})}
        bodies = {
            name: [node for node in ast.walk(function) if isinstance(node, ast.Call)]
            for name, function in self.functions.items()
        }
        self.waiting: frozenset[str] = frozenset()
        while more := {n for n, calls in bodies.items() if any(map(self.waits, calls))} - self.waiting:
            self.waiting |= more
        self.reading: frozenset[str] = frozenset()
        self.host: frozenset[str] = frozenset()  # functions of the file that launch nothing
        while more := {n for n, f in self.functions.items() if self._launches_nothing(f, bodies[n])} - self.host:
            self.host |= more
        self.reading = frozenset(name for name in self.host if sum(map(is_clock, bodies[name])) == 1)
        self.given_waits = frozenset(self._given_waits(nodes))

    def reads(self, node: ast.AST) -> bool:
        """Whether this is a clock's call, or one of a function of the file that does little else."""
        return is_clock(node) or (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in self.reading
        )

    def waits(self, node: ast.Call) -> bool:
        """Whether GPU work that was launched before is done after this call."""
        name = called(node)
        if isinstance(node.func, ast.Name):
            if name in self.functions:  # to be looked into, whatever it is called
                return name in self.waiting
            if name in _WAITING_BUILTINS and node.args:
                return any(True for _ in value_names(node.args[0])) and not any(map(is_clock, ast.walk(node)))
        if name == "step" and "scaler" in ast.unparse(node.func).lower():  # it asks whether to skip
            return True
        if name == "to":
            return any("cpu" in ast.unparse(argument) for argument in _arguments(node))
        if name in _WAITING_METHODS and name not in self.functions:
            return True
        if python_timeit(node):
            return False
        return name in _WAITS or name in self.waiting or _says_wait(name) or _keyword(node, "blocking")

    def launches(self, node: ast.Call) -> bool:
        """Whether it may leave work on the GPU; meant for calls that neither wait nor read."""
        name = called(node)
        if name in ("to", "cuda"):  # from ordinary memory it waits for its own end
            return self.does_not_block(node)
        on_host = not _HOST_WORDS.isdisjoint(name.lower().split("_"))
        if name in self.functions and (isinstance(node.func, ast.Name) or root_of(node) == "self"):
            return name not in self.host and not on_host
        if not name:  # `kernels[n](x)`
            return True
        if isinstance(node.func, ast.Name) and hasattr(builtins, name):
            return False
        if name in _HOST_OR_TENSOR:
            return root_of(node) in self.torch_modules and not self.makes_cpu_tensor(node)
        named = name in _HOST_CALLS or name[:1].isupper() or on_host
        return not (named or root_of(node) in self.host_modules or self.makes_cpu_tensor(node))

    def launches_on_tensors(self, node: ast.Call, tensors: Collection[str]) -> bool:
        """The same, where it is known which names are tensors."""
        return self.launches(node) or (called(node) in _HOST_OR_TENSOR and root_of(node) in tensors)

    def does_not_block(self, node: ast.Call) -> bool:
        """Whether a copy is asked not to wait."""
        return _keyword(node, "non_blocking")

    def makes_cpu_tensor(self, node: ast.expr) -> bool:
        """`torch.randn(8)`: without a device it lies in ordinary memory."""
        return (
            self.cpu_by_default
            and isinstance(node, ast.Call)
            and root_of(node) in self.torch_modules
            and called(node) in FACTORIES
            and not called(node).endswith("_like")
            and not any(keyword.arg in ("device", None) for keyword in node.keywords)
        )

    def timing_method(self, node: ast.Call, own: ast.ClassDef | None) -> ast.FunctionDef | None:
        """The method that is called, if it reads a clock, and is of a class of this file; `own` is that of `self`."""
        if not isinstance(node.func, ast.Attribute):
            return None
        owner = ast.unparse(node.func.value)
        known = own if owner == "self" else self.made.get(owner)
        methods = [method_of(one, node.func.attr) for one in ([known] if known else self.classes.values())]
        timing = [one for one in methods if one is not None and any(map(is_clock, ast.walk(one)))]
        return timing[0] if len(timing) == 1 else None

    def _launches_nothing(self, function: Function, calls: list[ast.Call]) -> bool:
        sums = [node for node in ast.walk(function) if isinstance(node, ast.BinOp | ast.AugAssign)]
        arithmetic = not all(any(_is_text(n) or is_clock(n) for n in ast.walk(node)) for node in sums)
        mine = [node for node in calls if not is_clock(node) and not self.waits(node)]
        return not arithmetic and not any(map(self.launches, mine))

    def _given_waits(self, nodes: Iterable[ast.AST]) -> Iterator[str]:
        """Functions that are given a function which waits, as an argument or as its decorator."""
        for node in nodes:
            if isinstance(node, ast.Call) and any(map(self._is_waiting, _arguments(node))):
                yield called(node)
            if isinstance(node, Function) and node.name in self.waiting:
                for decorator in node.decorator_list:
                    yield called(decorator) if isinstance(decorator, ast.Call) else ast.unparse(decorator)

    def _is_waiting(self, value: ast.expr) -> bool:
        if isinstance(value, ast.Lambda):
            return any(isinstance(node, ast.Call) and self.waits(node) for node in ast.walk(value.body))
        return isinstance(value, ast.Name | ast.Attribute) and ast.unparse(value).rpartition(".")[2] in self.waiting


def python_timeit(node: ast.Call) -> bool:
    """Whether this is `timeit.timeit`, which does not wait; torch's Timer does."""
    return called(node) in ("timeit", "repeat") and root_of(node) in ("timeit", "time")


def method_of(owner: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    """A class's own method of that name."""
    return next((node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == name), None)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _sets_default_device(node: ast.AST) -> bool:
    if isinstance(node, ast.withitem):
        return isinstance(node.context_expr, ast.Call) and called(node.context_expr) == "device"
    return isinstance(node, ast.Attribute) and node.attr in ("set_default_device", "set_default_tensor_type")


def _says_wait(name: str) -> bool:
    lower = name.lower()
    return (
        ("sync" in lower and "async" not in lower and "no_sync" not in lower)
        or (lower.startswith("wait") or lower.endswith("wait"))
    ) and lower not in _STREAM_WAITS


def _arguments(node: ast.Call) -> list[ast.expr]:
    return [*node.args, *(keyword.value for keyword in node.keywords)]


def _keyword(node: ast.Call, name: str) -> bool:
    return any(k.arg == name and not (isinstance(k.value, ast.Constant) and not k.value.value) for k in node.keywords)


def root_of(node: ast.Call) -> str:
    """The name that a call's path begins with: `torch` in `torch.cuda.synchronize()`."""
    at: ast.AST = node.func
    while isinstance(at, ast.Attribute):
        at = at.value
    return at.id if isinstance(at, ast.Name) else ""


def _modules(nodes: Iterable[ast.AST], known: Iterable[str]) -> Iterator[str]:
    """The names that a file gives to these modules, and to what it imports from them."""
    wanted = frozenset(known)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (a.asname or a.name.split(".")[0] for a in node.names if a.name.split(".")[0] in wanted)
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] in wanted:
            yield from (alias.asname or alias.name for alias in node.names)
