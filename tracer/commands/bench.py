"""Measure functions without being fooled by asynchronous launches.

The config's `bench` section names a setup and one or more candidates. Each is warmed
up until stable, timed on the GPU, on the host and on the wall, in turn with the
others, and shown beside what a timer without synchronisation would have claimed.
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `bench`."""
    parser.add_argument("config", help="a YAML file with a `bench` section")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value", help="overrides one key of the config")
    parser.add_argument("--format", choices=("terminal", "json"), default="terminal")
    parser.add_argument("-o", "--output", metavar="FILE", help="also write the JSON there, for `tracer diff`")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print."""
    from pathlib import Path

    from tracer.config import load_config
    from tracer.errors import UsageError
    from tracer.recording.bench_run import run_bench
    from tracer.reports import json as json_report
    from tracer.reports._benchmark import render_benchmark

    config = load_config(arguments.config, arguments.overrides, needs="bench")
    result = run_bench(config.bench, config.base)
    text = json_report.render_benchmark(result)
    if arguments.output:
        try:
            Path(arguments.output).write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{arguments.output} cannot be written", why=str(error)) from error
    print(text.rstrip() if arguments.format == "json" else render_benchmark(result))
    return 0
