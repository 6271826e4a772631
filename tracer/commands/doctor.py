"""Say what this machine can record, and for each no what to do about it.

Tries the real things: a short recording, a synchronisation hook, py-spy on a process
of its own. Status 0 if everything works, 1 if something is missing.
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How to print."""
    parser.add_argument("--format", choices=("terminal", "json"), default="terminal", help="default: %(default)s")


def run(arguments: argparse.Namespace) -> int:
    """Print every check; 1 if one says no."""
    from tracer.recording.probe import probe

    checks = probe()
    if arguments.format == "json":
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(checks), indent=2).decode())
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            print(f"{check.state:4}  {check.name:{width}}  {check.found}")
            if check.fix and check.state != "yes":
                print(f"{'':{width + 8}}{check.fix}")
        missing = sum(check.state == "no" for check in checks)
        print(f"\n{missing} of {len(checks)} are missing" if missing else "\neverything can be recorded here")
    return int(any(check.state == "no" for check in checks))
