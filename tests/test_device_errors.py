"""Texts that real programs printed, from public reports, and what is read from them."""

from __future__ import annotations

import pytest

from tracer.recording.device_errors import Stderr, classify, parse_assertion

TEXTS = {
    "torch 2": (
        "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1284: indexSelectSmallIndex: block: [0,0,0], thread: [32,0,0] "
        "Assertion `srcIndex < srcSelectDimSize` failed.",
        (
            "/pytorch/aten/src/ATen/native/cuda/Indexing.cu",
            1284,
            "indexSelectSmallIndex",
            "srcIndex < srcSelectDimSize",
        ),
    ),
    "relative path": (
        "../aten/src/ATen/native/cuda/Loss.cu:250: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], "
        "thread: [18,0,0] Assertion `t >= 0 && t < n_classes` failed.",
        (
            "../aten/src/ATen/native/cuda/Loss.cu",
            250,
            "nll_loss_forward_reduce_cuda_kernel_2d",
            "t >= 0 && t < n_classes",
        ),
    ),
    "a lambda in a template": (
        "../aten/src/ATen/native/cuda/ScatterGatherKernel.cu:144: operator(): block: [5,0,0], thread: [3,0,0] "
        'Assertion `idx_dim >= 0 && idx_dim < index_size && "index out of bounds"` failed.',
        (
            "../aten/src/ATen/native/cuda/ScatterGatherKernel.cu",
            144,
            "operator()",
            'idx_dim >= 0 && idx_dim < index_size && "index out of bounds"',
        ),
    ),
    "a full signature, torch 0.4": (
        "/opt/conda/conda-bld/pytorch_1503966894950/work/lib/THCUNN/SpatialClassNLLCriterion.cu:40: void "
        "cunn_SpatialClassNLLCriterion_updateOutput_kernel(T *, T *, T *, long *, T *, int, int, int, int, int, long) "
        "[with T = float, AccumT = float]: block: [0,0,0], thread: [769,0,0] "
        "Assertion `t >= 0 && t < n_classes` failed.",
        (
            "/opt/conda/conda-bld/pytorch_1503966894950/work/lib/THCUNN/SpatialClassNLLCriterion.cu",
            40,
            "void cunn_SpatialClassNLLCriterion_updateOutput_kernel(T *, T *, T *, long *, T *, int, int, int, int, "
            "int, long) [with T = float, AccumT = float]",
            "t >= 0 && t < n_classes",
        ),
    ),
    "Windows, no kernel": (
        "C:/cb/pytorch_1000000000000/work/aten/src/THCUNN/ClassNLLCriterion.cu:108: block: [0,0,0], thread: [1,0,0] "
        "Assertion `t >= 0 && t < n_classes` failed.",
        (
            "C:/cb/pytorch_1000000000000/work/aten/src/THCUNN/ClassNLLCriterion.cu",
            108,
            "",
            "t >= 0 && t < n_classes",
        ),
    ),
    "behind a progress bar": (
        "  0%|          | 0/15580 [00:00<?, ?it/s]/opt/conda/conda-bld/pytorch_1695392020201/work/aten/src/ATen/native/"
        "cuda/Indexing.cu:1292: indexSelectLargeIndex: block: [222,0,0], thread: [96,0,0] Assertion "
        "`srcIndex < srcSelectDimSize` failed.",
        (
            "/opt/conda/conda-bld/pytorch_1695392020201/work/aten/src/ATen/native/cuda/Indexing.cu",
            1292,
            "indexSelectLargeIndex",
            "srcIndex < srcSelectDimSize",
        ),
    ),
    "compiled by Inductor": (
        "/tmp/torchinductor_root/ab/cabcdefghijklmnop.py:25: unknown: block: [0,0,0], thread: [1,0,0] Assertion "
        "`index out of bounds: 0 <= tmp4 < 100` failed.",
        ("/tmp/torchinductor_root/ab/cabcdefghijklmnop.py", 25, "", "index out of bounds: 0 <= tmp4 < 100"),
    ),
    "of a rank": (
        "[rank3]: /pytorch/aten/src/ATen/native/cuda/TensorCompare.cu:112: _assert_async_cuda_kernel: block: [0,0,0], "
        "thread: [0,0,0] Assertion `probability tensor contains either `inf`, `nan` or element < 0` failed.",
        (
            "/pytorch/aten/src/ATen/native/cuda/TensorCompare.cu",
            112,
            "_assert_async_cuda_kernel",
            "probability tensor contains either `inf`, `nan` or element < 0",
        ),
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_assertions_are_read_whatever_stands_around_them(name):
    text, (file, line, kernel, condition) = TEXTS[name]

    found = parse_assertion(text)

    assert (found.file, found.line, found.kernel, found.text) == (file, line, kernel, condition)


def test_thousands_of_lines_become_one_sentence():
    stderr = Stderr()
    shown = [
        stderr.feed(
            f"/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1284: indexSelectSmallIndex: block: [{block},0,0], "
            f"thread: [{thread},0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
        )
        for block in range(2)
        for thread in range(64)
    ]

    assert shown.count(True) == 1
    assert [assertion.show() for assertion in stderr.assertions] == [
        "indexSelectSmallIndex at Indexing.cu:1284: srcIndex < srcSelectDimSize "
        "(block 0,0,0, thread 0,0,0, 128 of them in 2 blocks)"
    ]


def test_the_first_cuda_error_and_its_traceback_are_kept():
    stderr = Stderr()
    for line in """\
Traceback (most recent call last):
  File "old.py", line 1, in <module>
ValueError: something else
Traceback (most recent call last):
  File "train.py", line 577, in <module>
    main()
  File "train.py", line 379, in main
    raise RuntimeError("CUDA error: this is source text")
torch.AcceleratorError: CUDA error: device-side assert triggered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
RuntimeError: CUDA error: a later one
""".splitlines():
        assert stderr.feed(line)

    assert stderr.error == "torch.AcceleratorError: CUDA error: device-side assert triggered"
    assert stderr.frames == [("train.py", 577, "<module>"), ("train.py", 379, "main")]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("torch.AcceleratorError: CUDA error: device-side assert triggered", "async.assert"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "async.illegal"),
        ("RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered", "async.illegal"),
        ("RuntimeError: CUDA error: misaligned address", "async.misaligned"),
        ("RuntimeError: CUDA error: unspecified launch failure", "async.launch_failed"),
        ("CUDA error: too many resources requested for launch", "launch.resources"),
        ("CUDA error: invalid device ordinal", "async.other"),
        (
            "[rank1]:[E1130 ProcessGroupNCCL.cpp:2068] [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog "
            "thread terminated with exception: CUDA error: device-side assert triggered",
            "async.assert",
        ),
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied", ""),
    ],
)
def test_errors_have_a_class(text, word):
    assert classify(text) == word


@pytest.mark.parametrize(
    "line",
    [
        "python: main.c:3: main: Assertion `x > 0' failed.",
        "AssertionError: block: [0,0,0], thread",
        "",
        "a" * 5000 + ": block: [1,2",
    ],
)
def test_other_lines_are_left_alone(line):
    assert parse_assertion(line) is None
