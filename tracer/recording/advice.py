"""What to change in the program, now that the guilty line is known."""

from __future__ import annotations

import shutil
from pathlib import Path

from tracer.recording.rerun import BLOCKING
from tracer.results import Sighting

# By what an assertion or an operator contains; the first that fits.
_CHANGES = (
    (
        ("embedding", "indexSelect", "index_select"),
        "ids must lie in 0..rows-1: compare the tokenizer's or data set's largest id with num_embeddings",
    ),
    (
        ("nll_loss", "n_classes", "cross_entropy_loss"),
        "targets must lie in 0..classes-1: check the labels, num_classes, and ignore_index for padding",
    ),
    (
        ("binary_cross_entropy", "target_val", "input_val"),
        "the input must lie in 0..1: apply sigmoid, or use binary_cross_entropy_with_logits",
    ),
    (
        ("multinomial", "probability tensor", "_assert_async"),
        "probabilities must be finite, not negative and not all 0: "
        "look for NaN or inf upstream, or a temperature that is too small",
    ),
    (("one_hot",), "classes must lie in 0..num_classes-1"),
    (
        ("scatter", "gather", "ScatterGather"),
        "gather and scatter take no negative index: it must lie in 0..size-1 of that dimension",
    ),
    (("index out of bounds", "aten.index", "vectorized_gather"), "an index must lie in -size..size-1 of its dimension"),
)


def advise(kind: str, best: Sighting, command: str, *, reproduced: bool) -> tuple[str, ...]:
    """Sentences for the person who must repair it."""
    if not kind:
        return ()
    texts = []
    signs = " ".join((best.op, *best.assertions))
    change = next((text for words, text in _CHANGES if any(word in signs for word in words)), None)
    if kind == "async.assert" and change:
        texts.append(change)
    if kind in ("async.illegal", "async.misaligned", "async.launch_failed"):
        texts.append(
            "check the kernel's offsets, masks and strides, and that its tensors are contiguous and still alive"
        )
        sanitizer = find_sanitizer()
        if sanitizer:
            texts.append(f"to see the faulting thread and address: {sanitizer} --tool memcheck {command}")
        elif not reproduced:
            texts.append(
                "compute-sanitizer (of the CUDA toolkit) would name the faulting thread; it is not installed here"
            )
    if kind == "launch.resources":
        texts.append("use fewer threads, registers or less shared memory: for Triton, a smaller block or num_warps")
    if kind == "memory.full":
        texts.append("this is no asynchronous error: the line of the traceback is the right one")
    if not reproduced:
        texts.append(
            "what vanishes when launches block is often a race: look for a missing wait_stream or record_stream, "
            "a buffer that is reused too early, or an input that depends on timing"
        )
    if kind.startswith("async."):
        texts.append(f"{BLOCKING}=1 is for debugging only: leave it out of production, it makes every launch wait")
    return tuple(texts)


def find_sanitizer() -> str | None:
    """compute-sanitizer, from PATH or the usual folder of the toolkit."""
    return shutil.which("compute-sanitizer") or next(
        (str(path) for path in (Path("/usr/local/cuda/bin/compute-sanitizer"),) if path.exists()), None
    )
