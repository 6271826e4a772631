"""After the program has ended: manifests of processes that died get an end, and words for what is missing."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tracer import config
from tracer.recording.store import write_json

NOTHING = "nothing.txt"  # in the run's folder: why it has no recording


@dataclass
class Outcome:
    """How a run ended."""

    folder: Path
    status: int  # of the program, as a shell says it
    folders: list[Path] = field(default_factory=list)  # run folders: one, or more if there were several windows
    recordings: list[Path] = field(default_factory=list)
    failed: str = ""  # why the profiler recorded nothing
    timed_out: bool = False  # it was ended after run.timeout
    notes: list[str] = field(default_factory=list)


def close_manifests(recordings: list[Path], pid: int, status: int) -> None:
    """Say how the program ended, in each process's manifest; a full disk leaves it unsaid."""
    for folder in recordings:
        manifest = read_manifest(folder)
        if manifest is None:
            continue
        if manifest.get("pid") == pid:
            manifest.setdefault("program", {})["exit_status"] = status
        with contextlib.suppress(OSError):
            write_json(folder / "manifest.json", manifest)


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """A process's manifest; None if there is none that can be read."""
    try:
        found: dict[str, Any] = msgspec.json.decode((folder / "manifest.json").read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return None
    return found


def has_window(folder: Path) -> bool:
    """Whether a window was opened in any process of this run, written whole or not."""
    manifests = (read_manifest(path) for path in folder.glob("rank*"))
    return any(manifest is not None and manifest.get("window") for manifest in manifests)


def describe(outcome: Outcome, settings: config.Config) -> str:
    """Why there is nothing to audit, and how to go on."""
    why, fix = _cause(outcome, settings)
    return f"nothing was recorded: {why}" + (f"\n  fix: {fix}" if fix else "")


def _cause(outcome: Outcome, settings: config.Config) -> tuple[str, str]:
    window = settings.window
    for folder in outcome.recordings:
        manifest = read_manifest(folder)
        if manifest is not None and manifest.get("why"):
            return str(manifest["why"]), _fix_of(window)
    if outcome.failed:
        return outcome.failed, ""
    trouble = outcome.folder / "unreached.txt"
    if trouble.exists():
        why = trouble.read_text(encoding="utf-8", errors="replace").strip()
        return f"the recorder could not be started: {why}", ""
    if not (outcome.folder / "reached.txt").exists():
        why = "no Python of the program was reached: it runs with -I, -E or -S, or clears its environment, or is none"
        return why, "start it without these, or use `with tracer.record(...)` inside the program"
    script = _missing_script(settings.run)
    if outcome.status and script:
        return (
            f"there is no {script}, and the program ended with status {outcome.status}",
            "name a script that is there",
        )
    awaited = _AWAITED.get(window.step_from) or (
        f"a mark named {window.step_from.removeprefix('mark:')!r}" if window.step_from.startswith("mark:") else ""
    )
    if outcome.timed_out:
        before = awaited or "CUDA, an optimizer's step or tracer.step()"
        return f"the program was ended after run.timeout, before {before} came", "a larger run.timeout"
    if outcome.status:
        before = f"before {awaited} came" if awaited else "before it used CUDA or an optimizer"
        return f"the program ended with status {outcome.status} {before}", ""
    if awaited:
        return (
            f"{awaited} never came, which window.step_from waits for",
            "window.step_from=auto, or make the program do so",
        )
    return (
        "the program used neither CUDA nor an optimizer",
        "call tracer.step() in its loop, or record by time: window.seconds=5",
    )


_AWAITED = {
    "optimizer": "the step of an optimizer",
    "profiler": "a step of the program's own torch.profiler",
    "tracer": "a call of tracer.step()",
}


def _fix_of(window: config.Window) -> str:
    if window.signal:
        return f"send {window.signal} while the program runs"
    if window.seconds is not None:
        return f"a smaller window.skip: it is {window.skip} s" if window.skip else "let the program run for longer"
    if window.skip or window.warmup:
        return "a smaller window.skip or window.warmup, or window.seconds to record by time"
    return "window.seconds to record by time"


def _missing_script(run: config.Run) -> str:
    """The script that a command names for Python to run, if it is not there."""
    words = run.command if isinstance(run.command, list) else []
    python = bool(words) and Path(words[0]).name.startswith("python")
    script = words[1] if python and len(words) > 1 and words[1].endswith(".py") else ""
    return script if script and not (Path(run.cwd or ".") / script).exists() else ""
