"""What a manifest says about the program and the machine it ran on; secrets are left out."""

from __future__ import annotations

import os
import platform
import re
import sys
import threading
from importlib import metadata
from pathlib import Path
from typing import Any

import tracer
from tracer.recording.session import Session

_SECRET = re.compile(
    r"secret|token(?!iz|s)|passw|passphrase|pwd$|credential|api_?key|access_?key|private|auth|cookie|session|signature|_key$|^key$|dsn$",
    re.IGNORECASE,
)
_HARMLESS = re.compile(r"^(XDG_|DBUS_|DESKTOP_|GDM)?SESSION(_ID|_TYPE|_CLASS|NAME)?$|^PWD$|^OLDPWD$|^SSH_AUTH_SOCK$")
_LOGIN = re.compile(r"(\w+://)[^/\s@]+@")
_SHAPES = re.compile(
    r"\b(sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|hf_[A-Za-z0-9]{20,}|AKIA[A-Z0-9]{12,}|xox[abp]-[A-Za-z0-9-]{10,}"
    r"|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*)"
)
_REMOVED = "(removed)"
_MOST_SOURCES, _LARGEST_SOURCE = 500, 1 << 20


def clean_environment(environment: dict[str, str]) -> dict[str, str]:
    """The environment, without the values that may be secrets."""
    return {
        name: _REMOVED if _SECRET.search(name) and not _HARMLESS.search(name) else _clean(value)
        for name, value in sorted(environment.items())
    }


def clean_arguments(argv: list[str]) -> list[str]:
    """The arguments, without the values of those that are named like secrets."""
    cleaned: list[str] = []
    hide_next = False
    for word in argv:
        name, equals, _ = word.partition("=")
        secret = name.startswith("-") and bool(_SECRET.search(name.lstrip("-").replace("-", "_")))
        if hide_next and not word.startswith("-"):
            cleaned.append(_REMOVED)
        elif secret and equals:
            cleaned.append(f"{name}={_REMOVED}")
        else:
            cleaned.append(_clean(word))
        hide_next = secret and not equals
    return cleaned


def _clean(value: str) -> str:
    return _SHAPES.sub(_REMOVED, _LOGIN.sub(rf"\1{_REMOVED}@", value))


def program(kind: str) -> dict[str, Any]:
    """How the program of this process was started."""
    try:
        cwd = str(Path.cwd())
    except OSError:  # it has been deleted
        cwd = ""
    return {"kind": kind, "argv": clean_arguments(sys.orig_argv), "cwd": cwd, "exit_status": None}


def versions() -> dict[str, str]:
    """Of everything that has a say in what a recording looks like."""
    import torch

    found = {
        "tracer": tracer.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "system": platform.platform(),
    }
    if torch.version.cuda:
        found["cuda"] = str(torch.version.cuda)
    if torch.version.hip:
        found["hip"] = str(torch.version.hip)
    driver = Path("/proc/driver/nvidia/version")
    if driver.exists():
        number = re.search(r"\s(\d+\.\d+[.\d]*)\s", driver.read_text(encoding="utf-8", errors="replace"))
        found["driver"] = number[1] if number else "unknown"
    for name in ("py-spy", "numpy", "triton", "msgspec"):
        try:
            found[name.replace("-", "_")] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def devices() -> list[dict[str, Any]]:
    """The GPUs that this process may use; asked only once the program itself has initialised CUDA."""
    import torch

    if not torch.cuda.is_initialized():
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append(
            {
                "index": index,
                "name": properties.name,
                "memory_bytes": properties.total_memory,
                "multiprocessors": properties.multi_processor_count,
                "capability": f"{properties.major}.{properties.minor}",
            }
        )
    return found


def threads() -> list[dict[str, Any]]:
    """The threads that Python knows of, by both of their numbers."""
    return [
        {"ident": thread.ident, "native_id": thread.native_id, "name": thread.name} for thread in threading.enumerate()
    ]


def rank() -> int:
    """Which process of its job this is."""
    for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return _distributed("get_rank", 0)


def world_size() -> int:
    """How many processes the job has."""
    for name in ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return _distributed("get_world_size", 1)


def _distributed(ask: str, otherwise: int) -> int:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return otherwise
    return int(getattr(distributed, ask)())


def sources(session: Session) -> dict[str, str]:
    """The text of the user's files that ran, or were imported."""
    names = {name for name in session.user_files() if name.endswith(".py") or name.startswith("<")}
    for module in tuple(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if isinstance(name, str) and name.endswith(".py") and session.is_user_file(name):
            names.add(name)
    found: dict[str, str] = {}
    for name in sorted(names)[:_MOST_SOURCES]:
        text = _source(name)
        if text is not None:
            found[name] = text
    return found


def _source(name: str) -> str | None:
    if name.startswith("<"):
        import linecache

        return "".join(linecache.getlines(name)) or None
    try:
        path = Path(name)
        if path.stat().st_size > _LARGEST_SOURCE:
            return None
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
