"""What a dying CUDA program says on stderr: device assertions by the thousand, and the name of the error."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# One failing thread prints one line, for example
# /pytorch/aten/src/ATen/native/cuda/Indexing.cu:1284: indexSelectSmallIndex: block: [0,0,0], thread: [32,0,0] Assertion
# `srcIndex < srcSelectDimSize` failed.
# with or without the kernel's name, a full C++ signature in its place, a rank or a progress bar before it.
_ASSERTION = re.compile(
    r"(?P<file>(?:[A-Za-z]:)?[^\s:\[\]|]+):(?P<line>\d+): (?:(?P<kernel>.*?): )?"
    r"block: \[(?P<block>\d+,\d+,\d+)\], thread: \[(?P<thread>\d+,\d+,\d+)\] "
    r"Assertion [`'\"]?(?P<text>.*?)[`'\"]? failed\.?\s*$"
)
_FRAME = re.compile(r'^\s*(?:\[rank\d+\]:\s*)?File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+?)\s*$')
# torch says "CUDA error", its launcher of compiled kernels "CUDA driver error", Triton "Triton Error [CUDA]".
_ERROR = re.compile(r"(?i:CUDA (?:driver |runtime )?error)|\[CUDA\]|cudaError[A-Z]\w*|CUDA_ERROR_[A-Z]+")

# The class word, and what the error's text contains; the first that fits.
_CLASSES = (
    ("async.assert", ("device-side assert", "cudaErrorAssert")),
    ("async.illegal", ("illegal memory access", "cudaErrorIllegalAddress", "invalid address space")),
    ("async.misaligned", ("misaligned address",)),
    ("async.launch_failed", ("unspecified launch failure", "launch failed", "illegal instruction", "hardware stack")),
    ("async.launch_failed", ("invalid program counter", "launch timed out", "launch timeout", "EXECUTION_FAILED")),
    ("launch.resources", ("too many resources requested", "out of resources")),
    ("memory.full", ("out of memory",)),
)
KINDS = {
    "async.assert": "an assertion failed on the GPU",
    "async.illegal": "a kernel touched an address that is not its own",
    "async.misaligned": "a kernel used a misaligned address",
    "async.launch_failed": "a kernel died on the GPU",
    "async.other": "the GPU reported an error",
    "launch.resources": "a kernel asked for more than the GPU has",
    "memory.full": "the GPU's memory was full",
}


def speaks_of_cuda(text: str) -> bool:
    """Whether an error's text is about the CUDA device."""
    return _ERROR.search(text) is not None


def classify(text: str) -> str:
    """The class word of an error's text; "" if it does not speak of CUDA."""
    for word, signs in _CLASSES:
        if any(sign in text for sign in signs):
            return word
    return "async.other" if speaks_of_cuda(text) else ""


@dataclass(slots=True)
class Assertion:
    """A device assertion, and how often it was printed."""

    file: str
    line: int
    kernel: str
    text: str
    block: str  # the first that was printed
    thread: str
    count: int = 0
    blocks: set[str] = field(default_factory=set)

    def show(self) -> str:
        """`kernel at Indexing.cu:1284: srcIndex < srcSelectDimSize (block 0,0,0, thread 32,0,0, 128 of them)`."""
        where = f"{self.file.replace(chr(92), '/').rpartition('/')[2]}:{self.line}"
        kernel = f"{self.kernel} at {where}" if self.kernel else where
        many = f", {self.count} of them" if self.count > 1 else ""
        blocks = f" in {len(self.blocks)} blocks" if len(self.blocks) > 1 else ""
        return f"{kernel}: {self.text} (block {self.block}, thread {self.thread}{many}{blocks})"


def parse_assertion(line: str) -> Assertion | None:
    """The assertion in a line of stderr, if there is one."""
    found = _ASSERTION.search(line) if "Assertion" in line else None
    if found is None:
        return None
    kernel = found["kernel"] or ""
    return Assertion(
        found["file"],
        int(found["line"]),
        "" if kernel == "unknown" else kernel,
        found["text"],
        found["block"],
        found["thread"],
    )


class Stderr:
    """Reads a program's stderr as it comes, lets each assertion through once, and remembers what matters."""

    def __init__(self) -> None:
        self.assertions: list[Assertion] = []
        self.error = ""  # the first text that speaks of CUDA
        self.frames: list[tuple[str, int, str]] = []  # of the traceback before that error, outermost first
        self._traceback: list[tuple[str, int, str]] = []

    def feed(self, line: str) -> bool:
        """Take one line; whether it should be shown."""
        assertion = parse_assertion(line)
        if assertion is not None:
            return self._count(assertion)
        if "Traceback (most recent call last)" in line:
            self._traceback = []
        frame = _FRAME.match(line)
        if frame:
            self._traceback.append((frame["file"], int(frame["line"]), frame["function"]))
        # Indented lines are source text of a traceback, apart from what std::terminate says.
        if not self.error and (not line[:1].isspace() or "what():" in line) and speaks_of_cuda(line):
            self.error = line.strip()
            self.frames = self._traceback
        return True

    def _count(self, new: Assertion) -> bool:
        for known in self.assertions:
            if (known.file, known.line, known.text) == (new.file, new.line, new.text):
                break
        else:
            known = new
            self.assertions.append(new)
        known.count += 1
        known.blocks.add(new.block)
        return known.count == 1
