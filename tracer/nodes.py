"""YAML nodes become values by what their key wants, and every error names its line.

`1e3` is a number for a number and text for a text, `off` is a word where words are
wanted, and a key that appears twice is an error.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Union

import msgspec
import yaml

from tracer.errors import UsageError

_DEEPEST = 20
Place = Callable[[yaml.Node], str]  # where a node stands, in words


def compose(text: str, source: str) -> yaml.Node | None:
    """The node that a text stands for; None for an empty text."""
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise UsageError(
            f"{source}{at} is not YAML", why=problem, fix="check indentation, quotes and colons"
        ) from error


def read_value(node: yaml.Node, kind: Any, path: str, place: Place, where: dict[str, str]) -> Any:
    """The value of a node, as its key at `path` wants it; notes in `where` on which line each key stands."""
    if path.count(".") + path.count("[") > _DEEPEST:
        raise UsageError(f"{place(node)} is nested too deep", why="an anchor may refer to itself")
    where.setdefault(path, place(node))
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, kind, path, place, where)
    if isinstance(node, yaml.SequenceNode):
        item = item_type(kind)
        return [read_value(child, item, f"{path}[{i}]", place, where) for i, child in enumerate(node.value)]
    return _scalar(node, _choices(kind))


def _mapping(node: yaml.MappingNode, kind: Any, path: str, place: Place, where: dict[str, str]) -> dict[str, Any]:
    fields = fields_of(kind)
    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = key_node.value if isinstance(key_node, yaml.ScalarNode) else str(key_node.value)
        at = f"{path}.{key}" if path else key
        if fields is not None:
            check_key(key, fields, path, place(key_node))
        if key in found:
            raise UsageError(
                f"{at} appears twice in {place(key_node)}", why=f"first in {where[at]}", fix="keep one of the two"
            )
        where[at] = place(key_node)
        inner = fields[key] if fields is not None else item_type(kind)
        found[key] = read_value(value_node, inner, at, place, where)
    return found


def check_key(key: str, fields: Mapping[str, Any], path: str, place: str) -> None:
    """Refuse a key that is not among the fields, naming the nearest."""
    if key in fields:
        return
    near = difflib.get_close_matches(key, fields, n=1, cutoff=0.0)
    inside = f" in `{path}`" if path else ""
    raise UsageError(
        f"unknown key {key!r}{inside} ({place})",
        fix=f"did you mean {near[0]!r}? Keys here: {', '.join(fields)}" if near else f"keys here: {', '.join(fields)}",
    )


def _scalar(node: yaml.Node, choices: tuple[Any, ...]) -> Any:
    text, tag = node.value, node.tag.rpartition(":")[2]
    quoted = getattr(node, "style", None) in ("'", '"', "|", ">")
    if quoted:
        return text
    if tag == "null" and (type(None) in choices or Any in choices):
        return None
    if text in choices:  # a word of a Literal, such as `off`
        return text
    if tag == "bool" and (bool in choices or Any in choices):
        return text.lower() in ("true", "yes", "on")
    if int in choices or float in choices or Any in choices:
        number = _number(text)
        if number is not None:
            whole = isinstance(number, float) and number.is_integer() and float not in choices and Any not in choices
            return int(number) if whole else number
    if str in choices or Any in choices:
        return text
    return None if tag == "null" else text


def _number(text: str) -> int | float | None:
    for make in (int, float):
        try:
            return make(text)
        except ValueError:
            continue
    return None


# What a type allows.


def _choices(kind: Any) -> tuple[Any, ...]:
    """The plain types and words that a scalar may become."""
    origin = typing.get_origin(kind)
    if origin is Annotated:
        return _choices(typing.get_args(kind)[0])
    if origin in (Union, types.UnionType):
        return tuple(choice for part in typing.get_args(kind) for choice in _choices(part))
    if origin is Literal:
        return typing.get_args(kind)
    return (kind,)


def _parts(kind: Any) -> list[Any]:
    if typing.get_origin(kind) is Annotated:
        return _parts(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (Union, types.UnionType):
        return [inner for part in typing.get_args(kind) for inner in _parts(part)]
    return [kind]


def fields_of(kind: Any) -> dict[str, Any] | None:
    """Key -> type of a struct; None where any key goes."""
    for part in _parts(kind):
        if isinstance(part, type) and issubclass(part, msgspec.Struct):
            hints = typing.get_type_hints(part, include_extras=True)
            hidden = getattr(part, "not_keys", ())
            return {name: hints[name] for name in part.__struct_fields__ if name not in hidden}
    return None


def item_type(kind: Any) -> Any:
    """What the items of a list, or the values of a mapping, are."""
    for part in _parts(kind):
        if typing.get_origin(part) in (list, dict):
            return typing.get_args(part)[-1]
    return Any
