"""Versions with faults that change what is recorded, each with what to do about it."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata


@dataclass(frozen=True, slots=True)
class Fault:
    """A version with a fault that changes what is recorded."""

    package: str
    first: tuple[int, ...]
    last: tuple[int, ...]
    text: str
    fix: str


FAULTS = (
    Fault("python", (3, 12, 0), (3, 12, 4), "calls of C functions are missing in stacks (pytorch#155446)",
          "use Python 3.12.5 or newer, or leave record.stacks off"),
    Fault("torch", (2, 0), (2, 8), "older than what tracer is tested with",
          "install torch 2.9 or newer"),
    Fault("torch", (2, 9), (2, 13), "a file name with a quote in it makes the profiler's JSON invalid (kineto#1459)",
          "nothing to do: tracer repairs such files while it reads them"),
    Fault("cuda", (12, 6), (13, 0), "a second profiler session can lose its first kernels (pytorch#192021)",
          "nothing to do: tracer records one session and throws its warm-up away"),
    Fault("cuda", (12, 9), (99,), "synchronisation records do not say which event was waited for (kineto#1552)",
          "nothing to do: the line comes from the ledger"),
    Fault("py-spy", (0, 0), (0, 4, 0), "samples carry no usable time stamps", "pip install -U py-spy"),
)  # fmt: skip


def known_faults(version_of: Callable[[str], tuple[int, ...]] | None = None) -> list[tuple[str, str]]:
    """The faults of the versions that are installed: what it is, and what to do."""
    version_of = version_of or _version
    found = []
    for fault in FAULTS:
        version = version_of(fault.package)
        if version and fault.first <= version[: len(fault.first)] and version[: len(fault.last)] <= fault.last:
            found.append((f"{fault.package} {'.'.join(map(str, version))}: {fault.text}", fault.fix))
    return found


def _version(package: str) -> tuple[int, ...]:
    readers: dict[str, Callable[[], str]] = {"python": platform.python_version, "cuda": _cuda_version}
    try:
        text = readers[package]() if package in readers else metadata.version(package)
    except metadata.PackageNotFoundError:
        return ()
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3])


def _cuda_version() -> str:
    torch = sys.modules.get("torch")
    return (torch.version.cuda or "") if torch is not None else ""
