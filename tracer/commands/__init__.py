"""The command line: finds the command, reads its arguments, runs it, prints our own errors.

A module here offers a docstring (its help), `add_arguments(parser)` and
`run(arguments) -> exit status`. It imports what it needs inside `run`, so that
`--help` loads neither torch nor numpy.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tracer.errors import TracerError
from tracer.plugins import modules_in


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: {message}\n")


def make_parser() -> argparse.ArgumentParser:
    """The whole command line, one subcommand for each module here."""
    parser = _Parser(
        prog="python -m tracer",
        description="Records CPU launches and GPU executions, and says where implicit syncs stall the host.",
    )
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    for module in modules_in("tracer.commands"):
        doc = (module.__doc__ or "").strip()
        command = commands.add_parser(
            module.__name__.rpartition(".")[2],
            help=doc.partition("\n")[0],
            description=doc,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run one command; its exit status."""
    arguments = make_parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except TracerError as error:
        print(f"tracer: {error}", file=sys.stderr)
        return error.status
    except BrokenPipeError:
        # The reader of our output (head, less) has gone: not an error of ours.
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        return 130
