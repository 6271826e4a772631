"""Whose code a file is, and what its text says: excerpts, and the one call that a trace can mean.

Profilers trim paths, so a file in a trace is looked up by its whole path first and
then by its last components, and only a single match counts. Nothing here opens a
file: the texts are those that came with the trace.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

# Packages as they appear in trimmed paths ("torch/_tensor.py"), where no site-packages is left to tell.
_NAMES = (
    "torch torchvision torchaudio torchtitan torchmetrics functorch triton transformers accelerate diffusers peft "
    "trl datasets tokenizers huggingface_hub safetensors lightning pytorch_lightning lightning_fabric deepspeed "
    "megatron apex flash_attn xformers bitsandbytes vllm sglang numpy scipy pandas sklearn PIL cv2 einops tqdm "
    "wandb tensorboard matplotlib jax flax jaxlib tensorflow keras cupy numba ray dask joblib pytest _pytest "
    "pluggy IPython ipykernel tornado traitlets viztracer pyinstrument timm kornia e3nn dgl torch_geometric "
    "pydantic rich click typer omegaconf hydra fsspec aiohttp requests sympy networkx jinja2 torchao torchdata"
)
_LIBRARIES = frozenset(_NAMES.split())
_LIBRARY_PATH = re.compile(
    r"(^|/)(site-packages|dist-packages|torchinductor_[^/]*|triton_cache)/|(^|/)lib(64)?/python[\d.]+/|/\.triton/"
    r"|(^|/)tracer/recording/(inject/)?\w+\.py$"
    r"|^<(frozen|eval_with_key|__array_function__|built-in|unknown|shim)|^$"
)
_NOTEBOOK = re.compile(r"^<ipython-input-|(^|/)ipykernel_\d+/|^<string>$|^<stdin>$|^<exec>$|^<doctest ")

# What a call of this operator looks like in the text. "if" stands for a test: if, while, assert, not, and, or.
_READS = frozenset({"item", "float", "int", "complex", "index", "range"})
CALLS_OF_OP: Mapping[str, frozenset[str]] = {
    "aten::item": _READS | {"format", "print"},
    "aten::_local_scalar_dense": _READS,
    "aten::is_nonzero": frozenset({"bool", "any", "all", "max", "min", "if"}),
    "aten::nonzero": frozenset({"nonzero", "argwhere", "where", "mask"}),
    "aten::nonzero_numpy": frozenset({"nonzero", "where"}),
    "aten::index": frozenset({"mask"}),
    "aten::matmul": frozenset({"matmul", "@"}),
    "aten::add": frozenset({"add", "+"}),
    "aten::sub": frozenset({"sub", "-"}),
    "aten::mul": frozenset({"mul", "*"}),
    "aten::div": frozenset({"div", "/"}),
    "aten::pow": frozenset({"pow", "**"}),
    "aten::repeat_interleave": frozenset({"repeat_interleave"}),
    "aten::masked_select": frozenset({"masked_select"}),
    "aten::bincount": frozenset({"bincount"}),
    "aten::unique_consecutive": frozenset({"unique_consecutive"}),
    "aten::_unique2": frozenset({"unique"}),
    "aten::equal": frozenset({"equal"}),
    "aten::allclose": frozenset({"allclose"}),
    "aten::copy_": frozenset({"cpu", "cuda", "to", "copy_", "tolist", "numpy", "tensor", "as_tensor"}),
    "aten::to": frozenset({"cpu", "cuda", "to", "tolist", "tensor", "as_tensor"}),
    "aten::_to_copy": frozenset({"cpu", "cuda", "to", "tolist", "tensor", "as_tensor"}),
}
_SYMBOLS: Mapping[type[ast.operator], str] = {
    ast.MatMult: "@",
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Pow: "**",
}

# A special method is called by writing something else.
WRITTEN: Mapping[str, frozenset[str]] = {
    "__format__": frozenset({"format"}),
    "__repr__": frozenset({"print", "repr", "str"}),
    "__bool__": frozenset({"bool", "if"}),
    "__float__": frozenset({"float"}),
    "__int__": frozenset({"int"}),
    "__len__": frozenset({"len"}),
    "__getitem__": frozenset({"mask"}),
}


def is_library_path(file: str) -> bool:
    """Whether a path alone says that the file belongs to a library, the interpreter or generated code."""
    file = file.replace("\\", "/")
    if _NOTEBOOK.search(file):
        return False
    if _LIBRARY_PATH.search(file):
        return True
    parts = PurePosixPath(file).parts
    if not parts or file.startswith("/"):
        return False
    top = parts[0].removesuffix(".py")
    return top in _LIBRARIES or top in sys.stdlib_module_names


class Sources:
    """The texts that came with a trace, found by whatever path a recorder wrote."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self._paths: dict[str, str | None] = {}
        self._lines: dict[str, list[str]] = {}
        self._trees: dict[str, ast.Module | None] = {}

    def path_of(self, file: str) -> str | None:
        """The key of the text of `file`: the same path, or the only one that ends in the same components."""
        if file not in self._paths:
            self._paths[file] = self._find(file)
        return self._paths[file]

    def _find(self, file: str) -> str | None:
        if file in self._texts:
            return file
        wanted = PurePosixPath(file.replace("\\", "/")).parts
        if not wanted or file.startswith("<"):
            return None
        matches = []
        for key in self._texts:
            parts = PurePosixPath(key.replace("\\", "/")).parts
            shorter = min(len(parts), len(wanted))
            if parts[-shorter:] == wanted[-shorter:]:
                matches.append(key)
        return matches[0] if len(matches) == 1 else None

    def is_user(self, file: str) -> bool:
        """Whether a file is the user's own code."""
        return file in self._texts or not is_library_path(file)

    def line(self, file: str, number: int) -> str:
        """The text of a line as it stands in the file; "" if it is not at hand."""
        key = self.path_of(file)
        if key is None:
            return ""
        if key not in self._lines:
            self._lines[key] = self._texts[key].splitlines()
        lines = self._lines[key]
        return lines[number - 1] if 0 < number <= len(lines) else ""

    def characters(self, file: str, line: int, column: int, end_column: int) -> tuple[int, int]:
        """Columns counted in characters, from Python's own, which count UTF-8 bytes."""
        text = self.line(file, line).encode()
        if len(text) < end_column - 1 or text.isascii():
            return column, end_column
        return tuple(len(text[: at - 1].decode(errors="ignore")) + 1 for at in (column, end_column))  # type: ignore

    def candidates(
        self, file: str, line: int, function: str, names: frozenset[str]
    ) -> list[tuple[int, tuple[int, int] | None]]:
        """Lines (with columns) in a function where one of these calls stands; `line` is its def line or inside it."""
        body = self._function(file, line, function)
        if body is None:
            return []
        found = {place for node in _own_nodes(body) for place in _places(node, names)}
        ordered = sorted(found, key=lambda place: (place[0], place[1] or (0, 0)))
        return [(at, self.characters(file, at, *columns) if columns else None) for at, columns in ordered]

    def columns_on(self, file: str, line: int, names: frozenset[str]) -> tuple[int, int] | None:
        """Columns of the only such call on a line; None if there are several or none."""
        tree = self._tree(file)
        if tree is None:
            return None
        nodes = (n for n in ast.walk(tree) if getattr(n, "lineno", 0) <= line <= (getattr(n, "end_lineno", 0) or 0))
        found = {columns for node in nodes for at, columns in _places(node, names) if at == line and columns}
        return self.characters(file, line, *found.pop()) if len(found) == 1 else None

    def _tree(self, file: str) -> ast.Module | None:
        key = self.path_of(file)
        if key is None:
            return None
        if key not in self._trees:
            try:
                self._trees[key] = ast.parse(self._texts[key])
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                self._trees[key] = None
        return self._trees[key]

    def _function(self, file: str, line: int, function: str) -> ast.AST | None:
        tree = self._tree(file)
        if tree is None:
            return None
        if function == "<module>":
            return tree
        best: ast.AST | None = None
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name != function.rpartition(".")[2]:
                continue
            # A code object starts at its first decorator.
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first <= line <= (node.end_lineno or first) and (best is None or first > getattr(best, "lineno", 0)):
                best = node
        return best


def _own_nodes(body: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run in this function itself, not in functions and classes defined inside."""
    waiting: list[ast.AST] = list(getattr(body, "body", []))
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            waiting += node.decorator_list
            waiting += [*node.bases, *node.keywords] if isinstance(node, ast.ClassDef) else [node.args]
        elif isinstance(node, ast.Lambda):
            waiting.append(node.args)
        else:
            waiting += ast.iter_child_nodes(node)


def _places(node: ast.AST, names: frozenset[str]) -> Iterator[tuple[int, tuple[int, int] | None]]:
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in names:
            # The line that runs is the one of the method's name, which a chain of calls may put further down.
            at = (node.func.end_lineno or node.lineno) if isinstance(node.func, ast.Attribute) else node.lineno
            yield at, _columns(node) if at == node.lineno else None
    elif isinstance(node, ast.If | ast.While | ast.Assert | ast.IfExp):
        if "if" in names:
            yield node.test.lineno, _columns(node.test)
    elif isinstance(node, ast.Subscript):
        if "mask" in names and not isinstance(node.slice, ast.Constant | ast.Slice | ast.Tuple):
            yield node.lineno, _columns(node)
    elif isinstance(node, ast.FormattedValue):
        if "format" in names:
            yield node.lineno, _columns(node)
    elif isinstance(node, ast.BinOp) and _SYMBOLS.get(type(node.op), "") in names:
        yield node.lineno, _columns(node)


def _columns(node: ast.AST) -> tuple[int, int] | None:
    start, end = getattr(node, "col_offset", None), getattr(node, "end_col_offset", None)
    if start is None or end is None or getattr(node, "lineno", 0) != getattr(node, "end_lineno", 0):
        return None
    return start + 1, end + 1
