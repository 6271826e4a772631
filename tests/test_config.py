"""A config that is wrong says where and how to mend it; one that is right comes out as it was meant."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tracer.config import command_config, load_config, parse_config
from tracer.errors import UsageError

CONFIGS = Path(__file__).resolve().parents[1] / "configs"


def error_of(text: str, *overrides: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse_config(text, "x.yaml", overrides)
    assert caught.value.status == 2
    return str(caught.value)


def test_a_window_of_seconds_skips_none_by_default():
    assert command_config(["python", "t.py"], ["window.seconds=5"]).window.skip == 0
    assert command_config(["python", "t.py"], ["window.seconds=5", "window.skip=3"]).window.skip == 3
    assert command_config(["python", "t.py"], ["window.steps=5"]).window.skip == 10


def test_a_scalar_is_read_as_what_its_key_wants():
    config = parse_config(
        "run:\n  script: 1e3\n  args: [--epochs, 3, 1e3, yes, null]\n  timeout: 1e1\n"
        "window:\n  skip: 1e3\n  steps: 5\nrecord:\n  stacks: off\n  shapes: yes\n  ranks: all\n",
        "x.yaml",
    )

    assert config.run.script == "1e3"
    assert config.run.args == ["--epochs", "3", "1e3", "yes", "null"]
    assert config.run.timeout == 10.0
    assert config.window.skip == 1000
    assert config.record.stacks == "off"
    assert config.record.shapes is True
    assert config.record.ranks == "all"


def test_an_unknown_key_names_the_nearest_and_its_line():
    error = error_of("run:\n  script: a.py\nwindow:\n  warmpu: 2\n")

    assert "'warmpu'" in error
    assert "x.yaml, line 4" in error
    assert "did you mean 'warmup'" in error


def test_a_key_that_appears_twice_is_an_error():
    error = error_of("run:\n  script: a.py\n  script: b.py\n")

    assert "run.script appears twice in x.yaml, line 3" in error
    assert "line 2" in error


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("# only a comment\n", "is empty"),
        ("- run\n", "its top is not a mapping"),
        ("run: {script: a.py", "line 1"),
        ("run: &a {env: *a}", "nested too deep"),
        ("run:\n  script: a.py\nbase: here\n", "unknown key 'base'"),
        ("run:\n  script: a.py\n  module: b\n", "script, module"),
        ("window:\n  steps: 3\n", "names no program"),
        ("run:\n  script: a.py\nwindow:\n  steps: many\n", "x.yaml, line 4"),
        ("run:\n  script: a.py\nwindow:\n  steps: 0\n", "`int` >= 1"),
        ("run:\n  script: a.py\nwindow:\n  steps: 2.5\n", "Expected `int"),
        ("run: a.py\n", "run in x.yaml, line 1"),
        ("run:\n  script: a.py\nwindow: {steps: 3, seconds: 2}\n", "both given"),
        ("run:\n  script: a.py\nwindow: {every: 3, seconds: 2}\n", "windows repeat by steps"),
        ("run:\n  script: a.py\nwindow: {step_from: guess}\n", "'guess'"),
        ("run:\n  script: a.py\nrecord:\n  ranks: [0, x]\n", "record.ranks"),
    ],
)
def test_what_is_wrong_is_named(text: str, words: str):
    assert words in error_of(text)


def test_a_config_that_is_not_there_says_how_to_go_on(tmp_path: Path):
    with pytest.raises(UsageError, match="there is no config") as caught:
        load_config(tmp_path / "none.yaml")

    assert "reference.yaml" in caught.value.fix


def test_an_override_replaces_one_key():
    config = parse_config(
        "run:\n  script: a.py\nwindow:\n  steps: 5\n",
        "x.yaml",
        ["window.steps=7", "record.ranks=[0, 2]", "run.args=[1]"],
    )

    assert config.window.steps == 7
    assert config.record.ranks == [0, 2]
    assert config.run.args == ["1"]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("window.step=7", "did you mean 'steps'"),
        ("windows.steps=7", "did you mean 'window'"),
        ("window.steps=many", "the argument window.steps=many"),
        ("steps", "neither a config nor key.path=value"),
    ],
)
def test_a_wrong_override_is_named(override: str, words: str):
    assert words in error_of("run:\n  script: a.py\n", override)


def test_a_program_without_config_gets_the_defaults():
    config = command_config(["python", "train.py", "--x"], ["window.skip=3"])

    assert config.run.command == ["python", "train.py", "--x"]
    assert config.window.skip == 3
    assert config.record.ranks == [0]


def test_the_reference_shows_every_key_with_its_default():
    path = CONFIGS / "reference.yaml"
    config, text = load_config(path), path.read_text()

    for section in ("window", "record", "output", "bench"):
        assert getattr(config, section) == type(getattr(config, section))()
    for section in ("run", "window", "record", "output", "bench"):
        for key in getattr(config, section).__struct_fields__:
            assert re.search(rf"^ +(# )?{key}:", text, re.MULTILINE), f"{section}.{key} is not shown"
    assert re.search("^budget:", text, re.MULTILINE)


@pytest.mark.parametrize(
    "path", sorted(set(CONFIGS.glob("*.yaml")) - {CONFIGS / "budget.yaml"}), ids=lambda path: path.name
)
def test_every_config_loads_and_its_program_is_there(path: Path):
    config = load_config(path, needs="run" if "\nrun:" in path.read_text() else "bench")

    if config.run.script:
        assert (CONFIGS / config.run.script).is_file()
