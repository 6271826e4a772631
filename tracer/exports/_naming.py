"""Kernel names as people say them.

`void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>,
std::array<char*, 1ul> >(int, ...)` becomes `vectorized_elementwise_kernel<FillFunctor>`:
no return type, parameters or namespaces, and of the template only the names that
tell two kernels apart.
"""

from __future__ import annotations

import ctypes
import json
import re
from functools import cache

from tracer.results import Place

LONGEST = 72
_OPENING, _CLOSING = "<({[", ">)}]"
_WORD = re.compile(r"[A-Za-z_]\w*(?:::[A-Za-z_~][\w]*)*")
_PLAIN = re.compile(  # words of a template that every kernel has
    r"u?int(\d+_t)?|unsigned|long|short|char|bool|float|double|void|const|signed|true|false|struct|class|enum|auto|"
    r"size_t|array|tuple|pair|type|T|Type|std|c10|at|native|cuda|detail|TensorInfo|\w*OffsetCalculator|Array|"
    r"(Load|Store)With(out)?Cast|enable_if|Half|BFloat16|func_wrapper_t|lambda|operator|gpu_kernel\w*|"
    r"integral_constant|integer_sequence"
)
_TELLING = re.compile(r"(?:Functor|Op|Ops|Kernel|kernel|Policy|_cuda|_impl|Tile\w*|Epilogue\w*)$")


@cache
def short_name(name: str) -> str:
    """A kernel's name, readable on a slice."""
    text = demangle(name)
    if not re.search(r"[<(:]", text):
        return _fit(text)
    text = text.replace("(anonymous namespace)::", "").replace("<unnamed>::", "").replace("{anonymous}::", "")
    text = re.sub(r"^(?:static |inline )*(?:void|auto|decltype\(auto\)) ", "", text)
    head, inside = _split_template(_without_parameters(text))
    base = head.strip().rpartition("::")[2] or head.strip()
    base = base.rpartition(" ")[2] or base
    told = _telling(inside)
    return _fit(f"{base}<{', '.join(told)}>" if told else base)


def demangle(name: str) -> str:
    """A C++ symbol as the compiler's user wrote it; other names as they are."""
    if not name.startswith("_Z"):
        return name
    library = _runtime()
    if library is None:
        return name
    status = ctypes.c_int()
    found = library.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    if not found:
        return name
    text = ctypes.cast(found, ctypes.c_char_p).value or b""
    library.free(found)
    return text.decode(errors="replace")


@cache
def _runtime() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return None
    library.__cxa_demangle.restype = ctypes.c_void_p
    library.__cxa_demangle.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    library.free.argtypes = [ctypes.c_void_p]
    return library


def _without_parameters(text: str) -> str:
    """Cuts the parameter list: the first bracket outside a template that follows a name."""
    depth = 0
    for at, letter in enumerate(text):
        if letter == "<":
            depth += 1
        elif letter == ">" and text[at - 1] != "-":
            depth -= 1
        elif letter == "(" and depth == 0 and at and text[at - 1] != " ":
            return text[:at]
    return text


def _split_template(text: str) -> tuple[str, str]:
    """What stands before the last outermost `<...>`, and what is in it."""
    if not text.endswith(">"):
        return text, ""
    depth = 0
    for at in range(len(text) - 1, -1, -1):
        if text[at] == ">" and text[at - 1] != "-":
            depth += 1
        elif text[at] == "<":
            depth -= 1
            if depth == 0:
                return text[:at], text[at + 1 : -1]
    return text, ""


def _telling(inside: str) -> list[str]:
    """The names in a template that tell kernels apart: functors and operations first, two at most."""
    words = [word for word in _WORD.findall(inside) if word]
    lambda_of = re.search(r"(\w+)\([^()]*\)::\{lambda", inside)
    last = list(dict.fromkeys(word.rpartition("::")[2] for word in words))
    last = [word for word in last if len(word) > 1 and not _PLAIN.fullmatch(word)]
    telling = [word for word in last if _TELLING.search(word)]
    if lambda_of and lambda_of[1] not in telling:
        telling.insert(0, lambda_of[1])
    return (telling or last)[:2]


def _fit(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def short_place(place: Place | None) -> str:
    """`train.py:31`."""
    return f"{place.file.rpartition('/')[2]}:{place.line}" if place else ""


def process_name(name: str, program: str) -> str:
    """`python train.py`: a process's name, with what it runs if the recording says so (as JSON)."""
    name = name or "python"
    if not program.startswith("{"):
        return name
    argv = json.loads(program).get("argv", [])
    plain = [word for word in argv[1:] if not word.startswith("-")]
    return f"{name} {plain[0].rpartition('/')[2]}" if plain else name


def thread_name(name: str, lane: int, is_main: bool) -> str:
    """A thread's row heading."""
    plain = re.sub(r"^thread\s+\d+\s*(?:\((.*)\))?$", r"\1", name.strip()).strip()
    if is_main and plain in ("", "python", "python3", "MainThread"):
        return "main thread"
    return plain or "thread"


def stream_name(stream: int, device_name: str = "") -> str:
    """A stream's row heading; torch's own default stream is 7 in CUPTI's count."""
    return f"Stream {stream} (default)" if stream in (0, 7) else f"Stream {stream}"
