"""After the program has ended: manifests of processes that died get an end, and words for what is missing."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tracer.recording.store import write_json


@dataclass
class Outcome:
    """How a run ended."""

    folder: Path
    status: int  # of the program, as a shell says it
    folders: list[Path] = field(default_factory=list)  # run folders: one, or more if there were several windows
    recordings: list[Path] = field(default_factory=list)
    failed: str = ""  # why the profiler recorded nothing
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


def describe(outcome: Outcome) -> str:
    """Why there is nothing to audit, and how to go on."""
    for folder in outcome.recordings:
        manifest = read_manifest(folder)
        if manifest is not None and manifest.get("why"):
            return (
                f"nothing was recorded: {manifest['why']}\n"
                "  fix: a smaller window.skip, or window.seconds to record by time"
            )
    if outcome.failed:
        return f"nothing was recorded: {outcome.failed}"
    trouble = outcome.folder / "unreached.txt"
    if trouble.exists():
        return f"nothing was recorded: the recorder could not be started: {trouble.read_text().strip()}"
    if not (outcome.folder / "reached.txt").exists():
        return (
            "nothing was recorded: no Python of the program was reached\n"
            "  why: it runs with -I, -E or -S, or clears its environment, or is not Python\n"
            "  fix: start it without these, or use `with tracer.record(...)` inside the program"
        )
    if outcome.status:
        return (
            f"nothing was recorded: the program ended with status {outcome.status} before it used CUDA or an optimizer"
        )
    return (
        "nothing was recorded: the program used neither CUDA nor an optimizer\n"
        "  fix: call tracer.step() in its loop, or record by time: window.seconds=5"
    )
