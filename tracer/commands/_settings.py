"""Reads what to run, for every command that runs the user's program: a config, overrides, or a program after `--`."""

from __future__ import annotations

from tracer.config import Config, command_config, load_config
from tracer.errors import UsageError


def read_settings(words: list[str], asked: str = "run") -> Config:
    """The config that these words stand for, given to this command."""
    if "--" in words:
        at = words.index("--")
        given, command = words[:at], words[at + 1 :]
        if given and "=" not in given[0]:
            raise UsageError(
                "a config and a program after -- are two programs", fix=f"leave out {given[0]}, or what follows --"
            )
        return _checked(command_config(command, given), "the command line")
    if not words:
        raise UsageError(
            "there is nothing to run",
            fix=f"name a config, or a program after --: python -m tracer {asked} -- python train.py",
        )
    return _checked(load_config(words[0], words[1:]), words[0])


def _checked(config: Config, source: str) -> Config:
    """The same, if its budget can be understood: better an error now than after an hour's run."""
    if config.budget:
        from tracer.auditor.budgets import read_budget

        read_budget(config.budget, f"{source}: budget")
    return config
