"""The static half: rules that read source text, over files and folders. Runs nothing."""

from __future__ import annotations

import os
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from tracer.analysis.source_file import Source, read_source
from tracer.errors import UsageError
from tracer.plugins import modules_in
from tracer.results import SCHEMA, Audit, Finding, Launching, Pace

_SKIPPED = {"__pycache__", "node_modules", "build", "dist", "site-packages"}


def check_paths(paths: Iterable[str]) -> Audit:
    """Findings of every rule that offers `scan`, in an Audit that has nothing else.

    Raises UsageError for a path that is not there.
    """
    findings: list[Finding] = []
    sources: dict[str, str] = {}
    limits: list[str] = []
    scans = [module.scan for module in modules_in("tracer.rules") if hasattr(module, "scan")]
    count = 0
    for path in paths:
        for file in _python_files(Path(path)):
            count += 1
            try:
                with tokenize.open(file) as text:  # in the encoding that it declares
                    source = read_source(str(file), text.read())
            except (SyntaxError, ValueError, OSError, RecursionError, MemoryError) as error:
                limits.append(f"{file} was not looked at: {str(error) or type(error).__name__}")
                continue
            if source is not None:
                sources[source.file] = source.text
                findings.extend(_with_excerpt(found, source) for scan in scans for found in scan(source))
    findings = list({found.id: found for found in findings}.values())  # two timers may end in one place
    findings.sort(key=lambda found: (found.place.file, found.place.line) if found.place else ("", 0))
    return _audit(" ".join(map(str, paths)), findings, sources, limits, count)


def _python_files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():
        for folder, folders, files in os.walk(path):
            folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in _SKIPPED)
            yield from (Path(folder) / name for name in sorted(files) if name.endswith(".py"))
    else:
        raise UsageError(f"{path} does not exist", fix="name a Python file, or a folder that holds some")


def _with_excerpt(found: Finding, source: Source) -> Finding:
    place = found.place
    lines = source.text.splitlines()
    if place is None or not 0 < place.line <= len(lines):
        return found
    return replace(found, place=replace(place, excerpt=lines[place.line - 1]))


def _audit(source: str, findings: list[Finding], sources: dict[str, str], limits: list[str], count: int) -> Audit:
    return Audit(
        schema=SCHEMA,
        source=source,
        window_ns=0,
        steps=(),
        pace=Pace(),
        devices=(),
        findings=tuple(findings),
        idle={},
        idle_rows=(),
        lines=(),
        timers=(),
        launching=Launching(0, 0, 0, 0, None, None, 0, 0, 0.0, 0),
        kernels=(),
        ops=(),
        copies=(),
        verdicts=(),
        limits=tuple(limits),
        sources=sources,
        meta={"kind": "check", "files": str(count)},
    )
