"""What to run and what to record: YAML on disk, frozen structs in memory.

How YAML becomes these values, and errors their line, is in `nodes.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import yaml

from tracer.errors import UsageError
from tracer.nodes import check_key, compose, fields_of, item_type, read_value

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

    skip: Count = 10  # steps; or, if `seconds` is given, seconds, and then 0 by default
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
    base: str = ""  # folder of the file: relative scripts are looked for there
    not_keys: ClassVar[tuple[str, ...]] = ("base",)


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
    tree = compose(text, source)
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
    try:
        return msgspec.structs.replace(config, run=run, base=str(Path.cwd()))
    except FileNotFoundError as error:
        raise UsageError("the current folder does not exist any more", fix="cd to one that does") from error


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
    if source not in STEP_SOURCES and (not source.startswith("mark:") or source == "mark:"):
        raise UsageError(
            f"window.step_from is {source!r} in {where.get('window.step_from', 'the config')}",
            fix=f"one of {', '.join(STEP_SOURCES)}, or mark:NAME for an annotation of the program",
        )
    if window.every is not None and window.seconds is not None:
        raise UsageError(
            "window.every and window.seconds are both given",
            why="windows repeat by steps",
            fix="give window.steps, or leave out window.every",
        )
    if window.steps is not None and window.seconds is not None:
        raise UsageError(
            "window.steps and window.seconds are both given", why="a window ends by one of them", fix="remove one"
        )


def parse_arguments(values: Mapping[str, Any]) -> Config:
    """The config that keyword arguments stand for."""
    for section, kind in (("window", Window), ("record", Record)):
        for key in values.get(section, {}):
            check_key(key, fields_of(kind) or {}, section, "a keyword")
    try:
        config = msgspec.convert(values, Config)
    except msgspec.ValidationError as error:
        raise UsageError("an argument does not fit", why=str(error)) from error
    _check_window(config.window, {})
    return config


def _build(tree: yaml.Node | None, source: str, overrides: Sequence[str]) -> Config:
    where: dict[str, str] = {}
    values: Any = {}
    if tree is not None:
        if not isinstance(tree, yaml.MappingNode):
            raise UsageError(f"{source} is not a config", why="its top is not a mapping", fix="start with `run:`")
        values = read_value(tree, Config, "", lambda node: f"{source}, line {node.start_mark.line + 1}", where)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise UsageError(f"{override!r} is neither a config nor key.path=value", fix="for example window.steps=5")
        _override(values, key, text, where)
    window = values.get("window") if isinstance(values, dict) else None
    if isinstance(window, dict) and window.get("seconds") is not None:
        window.setdefault("skip", 0)  # ten steps are a moment; ten seconds are many a program's whole life
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
        fields = fields_of(kind)
        if fields is not None:
            check_key(name, fields, ".".join(names[:depth]), place)
            kind = fields[name]
        else:
            kind = item_type(kind)
        if depth < len(names) - 1:
            target = target.setdefault(name, {})
            if not isinstance(target, dict):
                raise UsageError(f"{key} cannot be set", why=f"{'.'.join(names[: depth + 1])} is not a mapping")
    node = compose(text, place)
    target[names[-1]] = None if node is None else read_value(node, kind, key, lambda _: place, where)
    where[key] = place
