"""Gets the recorder into every Python process of a run, through PYTHONPATH.

Python imports this at its start. It hides itself, hands over to the sitecustomize
that would have been found without it, and waits for torch to be imported; a process
that never imports torch pays nothing more.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing it from typing would take too long
if TYPE_CHECKING:
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100,PTH120 - pathlib takes too long here


def _begin(folder: str) -> None:
    """Torch is there: start the recorder."""
    home = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))  # noqa: PTH120
    added = "tracer" not in sys.modules
    other = _other_tracer()
    if other:
        _say(folder, f"the program has a module of its own named tracer, whose place ours would take: {other}")
        return
    if added:
        sys.path.insert(0, home)
    try:
        if os.environ.get("TRACER_LOCATE"):
            from tracer.recording import locate_child

            locate_child.install()
        if os.environ.get("TRACER_PROVE"):
            from tracer.recording import prove_child

            prove_child.install()
        if folder:
            from tracer.recording import child

            child.start(folder)
    except Exception as error:  # whatever it is, the program goes on
        _say(folder, f"{sys.executable}: {error!r}")
    finally:
        if added and home in sys.path:
            sys.path.remove(home)


def _say(folder: str, text: str) -> None:
    """Leave word of why nothing is recorded."""
    folder = folder or os.path.dirname(os.environ.get("TRACER_PROVE", ""))  # noqa: PTH120
    try:
        with open(os.path.join(folder, "unreached.txt"), "a", encoding="utf-8", errors="replace") as file:  # noqa: PTH118,PTH123
            file.write(f"{os.getpid()}: {text}\n")
    except OSError:
        pass


def _other_tracer() -> str:
    """The file of the `tracer` that the program would import, if that is not ours."""
    for finder in sys.meta_path:
        spec = finder.find_spec("tracer", None)
        if spec is not None:
            file: str = spec.origin or ""  # a folder without code has none
            ours = os.path.isdir(os.path.join(os.path.dirname(file), "recording", "inject"))  # noqa: PTH112,PTH118,PTH120
            return "" if ours else file
    return ""


class _Torch:
    """A finder that waits for `import torch`, and is gone after it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find torch as usual, and have us called once it has been executed."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                break
        else:
            return None
        loader: Any = spec.loader
        folder = self._folder
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            del loader.exec_module
            execute(module)
            _begin(folder)

        # Python leaves the frames of its own importlib out of the traceback of a failed import.
        exec_module.__code__ = exec_module.__code__.replace(co_filename="<frozen importlib._bootstrap_external>")
        loader.exec_module = exec_module
        return spec


def _install() -> None:
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]  # noqa: PTH100
    sys.path_importer_cache.pop(_HERE, None)
    folder = os.environ.get("TRACER_RUN")
    if not folder and (os.environ.get("TRACER_LOCATE") or os.environ.get("TRACER_PROVE")):
        sys.meta_path.insert(0, _Torch(""))
    elif folder and os.path.isdir(folder):  # noqa: PTH112
        sys.meta_path.insert(0, _Torch(folder))
        with open(os.path.join(folder, "reached.txt"), "a", encoding="ascii") as file:  # noqa: PTH118,PTH123
            file.write(f"{os.getpid()}\n")


def _hand_over() -> None:
    """Run the sitecustomize that stands behind this one; without any, let this import fail as it would have."""
    for finder in sys.meta_path:
        spec = finder.find_spec("sitecustomize", None)
        if spec is not None:
            break
    else:
        raise ImportError("No module named 'sitecustomize'", name="sitecustomize")
    module, loader = sys.modules["sitecustomize"], spec.loader
    module.__spec__, module.__file__, module.__loader__ = spec, spec.origin, loader
    del sys.modules["sitecustomize"]
    sys.modules["sitecustomize"] = module
    if loader is not None:
        loader.exec_module(module)


try:  # noqa: SIM105 - contextlib takes too long here
    _install()
except OSError:
    pass
_hand_over()
