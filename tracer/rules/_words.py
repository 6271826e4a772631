"""The word for a call that reads a value, from its operators, its stack and its source text."""

from __future__ import annotations

import re

from tracer.rules import Wait

# In the order in which they are believed when a whole line is all that is known.
_WRITTEN = (
    ("tolist", re.compile(r"\.tolist\s*\(")),
    ("item", re.compile(r"\.item\s*\(")),
    ("float", re.compile(r"\bfloat\s*\(")),
    ("int", re.compile(r"\bint\s*\(")),
    ("bool", re.compile(r"\bbool\s*\(")),
    ("numpy", re.compile(r"\.numpy\s*\(|np\.a?s?array\s*\(")),
    ("cpu", re.compile(r"\.cpu\s*\(")),
    ("print", re.compile(r"\bprint\s*\(")),
)
_BUILTIN = re.compile(r"^<built-in method (__)?(?P<word>item|float|int|bool|index|tolist|nonzero|cpu|to|numpy)(__)? ")


def scalar_word(wait: Wait) -> str:
    """How a read of one value is written: `item`, `float`, `int`, `bool`, `format`, `repr`, `index`."""
    functions = wait.functions()
    if wait.inside("_tensor_str.py") or "__repr__" in functions:
        return "repr"
    if "__format__" in functions:
        return "format"
    if "__contains__" in functions:
        return "contains"
    if "is_nonzero" in wait.ops:
        return "bool"
    if wait.outermost not in ("", "item", "_local_scalar_dense"):
        return wait.outermost
    return written(wait, ("item", "float", "int", "bool", "tolist")) or "item"


def written(wait: Wait, words: tuple[str, ...]) -> str:
    """The first of these words that the call is written with; "" if the text is not known or is in a library."""
    for name in wait.around:
        found = _BUILTIN.match(name)
        if found and found["word"] in words:
            return found["word"]
        if name.startswith("<"):
            break
    if wait.library is not None:
        return ""
    for word, pattern in _WRITTEN:
        if word in words and pattern.search(wait.text):
            return word
    return ""
