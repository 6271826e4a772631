"""Everything that can go wrong for a user: what happened, why, and how to go on."""

from __future__ import annotations


class TracerError(Exception):
    """An error to be read by a person, not a bug of ours.

    `what` is one sentence, `why` the reason if known, `fix` what to do next.
    """

    status = 1

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix

    def __str__(self) -> str:
        lines = [self.what]
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


class UsageError(TracerError):
    """Wrong arguments or a wrong config."""

    status = 2


class TraceError(TracerError):
    """A trace that cannot be read."""

    status = 3


class RecordError(TracerError):
    """Nothing could be recorded: the profiler or the sampler failed, never the program."""

    status = 4
