"""What to run and what to record: YAML on disk, frozen structs in memory.

A file is composed into nodes before it becomes values, so that every error names
its line. A scalar is read as what its key wants: `1e3` is a number for a number and
text for a text, and `stacks: off` is a word.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import msgspec
import yaml

from tracer.errors import UsageError

Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The program: exactly one of script, module and command."""

    script: str | None = None
    module: str | None = None
    command: str | list[str] | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None
    timeout: Seconds | None = None  # seconds


class Window(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which part of the program is recorded."""

    skip: Count = 10  # steps, or seconds if `seconds` is given
    warmup: Count = 2  # steps
    steps: Positive | None = None  # default 20
    seconds: Seconds | None = None
    every: Positive | None = None  # steps from the start of one window to the start of the next
    signal: Literal["SIGUSR1", "SIGUSR2"] | None = None
    step_from: str = "auto"  # auto, tracer, profiler, optimizer, time, or mark:NAME
    stop_after: bool = False


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is recorded in the window."""

    stacks: Literal["off", "full"] = "off"
    shapes: bool = False
    memory: bool = False
    sync_events: bool = True
    ledger: bool = True
    lines: bool = True
    clocks: bool = True
    samples: bool = True
    sample_rate: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    sample_native: bool = False
    sample_blocking: bool = False
    subprocesses: bool = False
    flight_recorder: bool = False
    ranks: list[Count] | Literal["all"] = msgspec.field(default_factory=lambda: [0])
    user_code: list[str] = []


class Output(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the recording goes, and what is made of it."""

    folder: str = "traces"
    name: str | None = None  # default: the program's name
    formats: list[str] = msgspec.field(default_factory=lambda: ["terminal", "json", "perfetto"])


class Bench(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `tracer bench` measures."""

    setup: str = ""  # Python that runs once, before
    candidates: dict[str, str] = {}  # name -> statement, or module:function
    device: Literal["auto", "cpu", "cuda"] = "auto"
    confidence: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.95
    precision: Annotated[float, msgspec.Meta(gt=0)] = 0.01  # half the interval over the median, at which it stops
    rotate: str | None = None  # name, from setup, of a list of inputs; statements see each as `x`
    flush: bool = True  # empty the L2 cache before each run
    max_seconds: Seconds = 10.0


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole config."""

    run: Run = Run()
    window: Window = Window()
    record: Record = Record()
    output: Output = Output()
    budget: dict[str, Any] = {}
    bench: Bench = Bench()
    base: str = ""  # folder of the file: relative scripts are looked for there; not a key


STEP_SOURCES = ("auto", "tracer", "profiler", "optimizer", "time")


def load_config(path: Path | str, overrides: Sequence[str] = (), *, needs: Literal["run", "bench"] = "run") -> Config:
    """Read a file; `overrides` are `key.path=value`, `needs` is the section that may not be empty."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UsageError(
            f"there is no config {path}",
            fix="write one (configs/reference.yaml shows every key), or run a program without: "
            "python -m tracer run -- python train.py",
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the config {path} cannot be read", why=str(error)) from error
    return parse_config(text, str(path), overrides, needs=needs)


def parse_config(
    text: str, source: str, overrides: Sequence[str] = (), *, needs: Literal["run", "bench"] = "run"
) -> Config:
    """Make a Config of YAML text that came from `source`."""
    tree = _compose(text, source)
    if tree is None:
        raise UsageError(f"{source} is empty", fix="start with:\nrun:\n  script: train.py")
    config = _build(tree, source, overrides)
    if needs == "run":
        _check_run(config.run, source)
    elif not config.bench.candidates:
        raise UsageError(
            f"{source} names nothing to measure",
            why="`bench.candidates` is empty",
            fix="bench:\n  candidates:\n    add: torch.add(a, b)",
        )
    return msgspec.structs.replace(config, base=str(Path(source).resolve().parent))


def command_config(command: Sequence[str], overrides: Sequence[str] = ()) -> Config:
    """The config of `run -- COMMAND`, defaults apart from the overrides."""
    if not command:
        raise UsageError(
            "there is nothing to run",
            fix="name a config, or a program after --: python -m tracer run -- python train.py",
        )
    config = _build(None, "the command line", overrides)
    if config.run.script or config.run.module or config.run.command:
        raise UsageError("the program is given twice", why="after -- and as run.script, run.module or run.command")
    run = msgspec.structs.replace(config.run, command=list(command))
    return msgspec.structs.replace(config, run=run, base=str(Path.cwd()))


def _check_run(run: Run, source: str) -> None:
    given = [key for key in ("script", "module", "command") if getattr(run, key) is not None]
    if len(given) != 1:
        what = "names no program" if not given else f"names more than one program: {', '.join(given)}"
        raise UsageError(
            f"{source} {what}",
            why="`run` takes exactly one of script, module and command",
            fix="run:\n  script: train.py",
        )


def _check_window(window: Window, where: Mapping[str, str]) -> None:
    source = window.step_from
    if source not in STEP_SOURCES and not source.startswith("mark:"):
        raise UsageError(
            f"window.step_from is {source!r} in {where.get('window.step_from', 'the config')}",
            fix=f"one of {', '.join(STEP_SOURCES)}, or mark:NAME for an annotation of the program",
        )
    if window.steps is not None and window.seconds is not None:
        raise UsageError(
            "window.steps and window.seconds are both given", why="a window ends by one of them", fix="remove one"
        )


def parse_arguments(values: Mapping[str, Any]) -> Config:
    """The config that keyword arguments stand for."""
    for section, kind in (("window", Window), ("record", Record)):
        for key in values.get(section, {}):
            _check_key(key, _fields(kind) or {}, section, "a keyword")
    try:
        config = msgspec.convert(values, Config)
    except msgspec.ValidationError as error:
        raise UsageError("an argument does not fit", why=str(error)) from error
    _check_window(config.window, {})
    return config


# From text to nodes.


def _compose(text: str, source: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise UsageError(
            f"{source}{at} is not YAML", why=problem, fix="check indentation, quotes and colons"
        ) from error


def _build(tree: yaml.Node | None, source: str, overrides: Sequence[str]) -> Config:
    where: dict[str, str] = {}
    values: Any = {}
    if tree is not None:
        if not isinstance(tree, yaml.MappingNode):
            raise UsageError(f"{source} is not a config", why="its top is not a mapping", fix="start with `run:`")
        values = _value(tree, Config, "", lambda node: f"{source}, line {node.start_mark.line + 1}", where)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise UsageError(f"{override!r} is neither a config nor key.path=value", fix="for example window.steps=5")
        _override(values, key, text, where)
    try:
        config = msgspec.convert(values, Config)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        key = path.rstrip("`").lstrip(".").replace("[...]", "")
        place = _place(key, where) or source
        raise UsageError(f"{key or 'the config'} in {place} does not fit", why=message) from error
    _check_window(config.window, where)
    return config


def _place(key: str, where: Mapping[str, str]) -> str:
    while key:
        if key in where:
            return where[key]
        key = key.rpartition("[")[0] if key.endswith("]") else key.rpartition(".")[0]
    return ""


def _override(values: dict[str, Any], key: str, text: str, where: dict[str, str]) -> None:
    place = f"the argument {key}={text}"
    kind: Any = Config
    target: Any = values
    names = key.split(".")
    for depth, name in enumerate(names):
        fields = _fields(kind)
        if fields is not None:
            _check_key(name, fields, ".".join(names[:depth]), place)
            kind = fields[name]
        else:
            kind = _item_type(kind)
        if depth < len(names) - 1:
            target = target.setdefault(name, {})
            if not isinstance(target, dict):
                raise UsageError(f"{key} cannot be set", why=f"{'.'.join(names[: depth + 1])} is not a mapping")
    node = _compose(text, place)
    target[names[-1]] = None if node is None else _value(node, kind, key, lambda _: place, where)
    where[key] = place


# From nodes to values, by what each key wants.


def _value(node: yaml.Node, kind: Any, path: str, place: Any, where: dict[str, str]) -> Any:
    where.setdefault(path, place(node))
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, kind, path, place, where)
    if isinstance(node, yaml.SequenceNode):
        item = _item_type(kind)
        return [_value(child, item, f"{path}[{i}]", place, where) for i, child in enumerate(node.value)]
    return _scalar(node, _choices(kind))


def _mapping(node: yaml.MappingNode, kind: Any, path: str, place: Any, where: dict[str, str]) -> dict[str, Any]:
    fields = _fields(kind)
    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = key_node.value if isinstance(key_node, yaml.ScalarNode) else str(key_node.value)
        at = f"{path}.{key}" if path else key
        if fields is not None:
            _check_key(key, fields, path, place(key_node))
        if key in found:
            raise UsageError(
                f"{at} appears twice in {place(key_node)}", why=f"first in {where[at]}", fix="keep one of the two"
            )
        where[at] = place(key_node)
        inner = fields[key] if fields is not None else _item_type(kind)
        found[key] = _value(value_node, inner, at, place, where)
    return found


def _check_key(key: str, fields: Mapping[str, Any], path: str, place: str) -> None:
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


def _fields(kind: Any) -> dict[str, Any] | None:
    """Key -> type of a struct; None where any key goes."""
    for part in _parts(kind):
        if isinstance(part, type) and issubclass(part, msgspec.Struct):
            hints = typing.get_type_hints(part, include_extras=True)
            return {name: hint for name, hint in hints.items() if not (part is Config and name == "base")}
    return None


def _item_type(kind: Any) -> Any:
    """What the items of a list, or the values of a mapping, are."""
    for part in _parts(kind):
        if typing.get_origin(part) in (list, dict):
            return typing.get_args(part)[-1]
    return Any
