"""`python -m tracer`, and the `tracer` script."""

from __future__ import annotations

import sys

from tracer.commands import main


def run() -> None:
    """Run the command line and end the process with its status."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
