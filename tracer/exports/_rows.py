"""Rows of a timeline as columns: slices of one shape together, counters, headings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracer.trace import Ids, Ints


class Strings:
    """Texts and their numbers; the same in every row, so that no column is renumbered."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self.texts: list[str] = []

    def id(self, text: str) -> int:
        """The number of a text."""
        found = self._ids.get(text)
        if found is None:
            found = self._ids[text] = len(self.texts)
            self.texts.append(text)
        return found

    def ids(self, texts: Iterable[str]) -> Ids:
        """The numbers of texts."""
        return np.array([self.id(text) for text in texts], np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Arg:
    """An argument of slices: whole numbers, doubles, or numbers of Strings."""

    name: str
    values: Any
    text: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Slices:
    """Slices of one shape: they have the same arguments, as many arrows, one colour."""

    start_ns: Ints
    dur_ns: Ints
    name: Ids  # -> Strings
    category: str
    args: tuple[Arg, ...] = ()
    leaving: tuple[Ints, ...] = ()  # ids of the arrows that leave each slice
    arriving: tuple[Ints, ...] = ()
    colour: str = ""  # see _colours.py; "" takes the name's own
    worked_ns: tuple[Ints, Ints] | None = None  # what the thread has worked until its begin and end
    order: Any = None  # sort key among all slices of the row; None: start, the longer first

    def __len__(self) -> int:
        return len(self.start_ns)

    def take(self, rows: Any) -> Slices:
        """Some of them."""
        return Slices(
            self.start_ns[rows],
            self.dur_ns[rows],
            self.name[rows],
            self.category,
            tuple(Arg(a.name, a.values[rows], a.text) for a in self.args),
            tuple(ids[rows] for ids in self.leaving),
            tuple(ids[rows] for ids in self.arriving),
            self.colour,
            None if self.worked_ns is None else (self.worked_ns[0][rows], self.worked_ns[1][rows]),
            None if self.order is None else self.order[rows],
        )


@dataclass(frozen=True, slots=True, eq=False)
class Counter:
    """Values over time; whole numbers or doubles."""

    time_ns: Ints
    value: Any
    unit: str = "count"  # "count", "bytes", "ns" or any word


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A line of the timeline, or a heading above others."""

    key: str  # unique in the trace
    name: str
    parent: str = ""  # key of the row above; "" at the top
    rank: int = 0  # order among its siblings, below a heading of ours
    description: str = ""
    slices: tuple[Slices, ...] = ()
    counter: Counter | None = None
    process: tuple[int, str, tuple[str, ...]] | None = None  # pid, name, labels
    thread: tuple[int, int, str] | None = None  # pid, tid, name
    merged: bool = True  # rows of one name and parent are drawn as one
    heading: bool = False  # its children keep their order

    @property
    def count(self) -> int:
        """How many slices."""
        return sum(len(part) for part in self.slices)
