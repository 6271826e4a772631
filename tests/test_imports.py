"""What is loaded when: held by lists of modules, not by time."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

import tracer

HEAVY = ("torch", "numpy", "msgspec", "rich", "jinja2", "perfetto", "google.protobuf", "yaml")


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh interpreter holds after running `code`."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint('\\n'.join(sys.modules), file=sys.stderr)"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return set(done.stderr.splitlines())


def test_import_tracer_loads_neither_torch_nor_numpy():
    assert not loaded_by("import tracer; dir(tracer)") & set(HEAVY)


def test_help_loads_neither_torch_nor_numpy():
    code = "from tracer.commands import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass"

    assert not loaded_by(code) & set(HEAVY)


def test_the_pytest_plugin_loads_neither_torch_nor_numpy():
    assert not loaded_by("import tracer.integrations.pytest_plugin") & {"torch", "numpy"}


def test_reading_and_auditing_a_trace_never_imports_torch(tmp_path):
    trace = tmp_path / "t.json"
    trace.write_text(
        '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]}'
    )
    code = (
        "from tracer.commands import main\n"
        f"status = main(['audit', {str(trace)!r}, '--format', 'json', '-o', {str(tmp_path / 'a.json')!r}])\n"
        "assert status == 0, status"
    )

    assert "torch" not in loaded_by(code)


# Both do their work when they are imported; tests of the command line and of launchers run them.
ACTING = ("__main__", "sitecustomize")
MODULES = [m.name for m in pkgutil.walk_packages(tracer.__path__, "tracer.") if not m.name.endswith(ACTING)]


@pytest.mark.parametrize("name", MODULES)
def test_every_module_can_be_imported(name):
    assert importlib.import_module(name).__doc__, f"{name} does not say what it is for"


def test_every_public_name_can_be_called():
    assert sorted(tracer.__all__) == dir(tracer)
    for name in tracer.__all__:
        assert callable(getattr(tracer, name)), name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        tracer.nonsense  # noqa: B018
