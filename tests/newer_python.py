"""A Python of 3.12 or newer, for what needs sys.monitoring.

If the tests run on one, it is that. Otherwise Debian's current release (3.13) is
unpacked by debootstrap into a temporary folder and its Python started through its own
loader: no chroot, so the checkout is where it is. TRACER_NEWER_ROOT names a folder that
is unpacked already.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

RELEASE = "trixie"
PACKAGES = "python3.13,python3-pytest,python3-msgspec,python3-yaml"
MIRROR = os.environ.get("TRACER_DEBIAN_MIRROR", "http://deb.debian.org/debian")


def newer_python(folder: Path) -> list[str]:
    """The command that starts it; `folder` is where to unpack."""
    if sys.version_info >= (3, 12):
        return [sys.executable]
    root = Path(os.environ.get("TRACER_NEWER_ROOT", folder / RELEASE))
    if not (root / "usr/bin/python3.13").exists():
        _unpack(root)
    libraries = ":".join(str(root / part) for part in ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"))
    return [str(root / "lib64/ld-linux-x86-64.so.2"), "--library-path", libraries, str(root / "usr/bin/python3.13")]


def _unpack(root: Path) -> None:
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        reason = "needs Python 3.12, or root and debootstrap to unpack one"
        if os.environ.get("CI"):
            raise RuntimeError(reason)
        pytest.skip(reason)
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", RELEASE, str(root), MIRROR]
    done = subprocess.run(command, capture_output=True, text=True, timeout=850)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def run_checks(python: list[str], files: list[Path], *options: str) -> subprocess.CompletedProcess[str]:
    """Run files of tests/newer under it, with its own pytest."""
    root = Path(__file__).resolve().parents[1]
    command = [*python, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", "-W", "error"]
    command += ["-c", os.devnull, "--rootdir", str(root), "-o", "python_files=check_*.py", *options]
    environment = os.environ | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory() as scratch:
        return subprocess.run(
            [*command, *map(str, files)], cwd=scratch, env=environment, capture_output=True, text=True, timeout=120
        )
