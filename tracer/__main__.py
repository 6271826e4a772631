"""`python -m tracer`, and the `tracer` script."""

from __future__ import annotations

import contextlib
import os
import sys


def run() -> None:
    """Run the command line and end the process with its status."""
    from tracer.commands import main

    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell: what we have to say goes nowhere
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115 - open until the end
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    # `-m` puts the current folder first, and a yaml.py or rich.py of the user's own would be taken for what we need.
    with contextlib.suppress(FileNotFoundError):  # a folder that was deleted holds nothing
        if not sys.flags.safe_path and sys.path[0] == os.getcwd():  # noqa: PTH109 - pathlib is not asked for yet
            sys.path.append(sys.path.pop(0))
    run()
