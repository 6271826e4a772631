"""Each rule about stalls on the smallest trace that has its sign, and on a neighbour that has not."""

import pytest

from tests.conftest import CPU, GPU, make_timeline
from tests.stories import TORCH, USER, Wait, findings_of
from tracer.auditor import examine
from tracer.rules import rule_modules
from tracer.trace import Kind

ITEM = ("aten::item", "aten::_local_scalar_dense")
BOOL = ("aten::is_nonzero", *ITEM)
TO = ("aten::to", "aten::_to_copy", "aten::copy_")
DOWN, DOWN_PAGEABLE = "DtoH (Device -> Pinned)", "DtoH (Device -> Pageable)"
UP, UP_PINNED = "HtoD (Pageable -> Device)", "HtoD (Pinned -> Device)"


def below(path, function, line=100):
    return ((TORCH + path, line, function), USER)


CASES = {
    "item": (Wait(ITEM, DOWN, text="v = loss.item()"), "SYNC001", "sync.item", "item"),
    "float": (Wait(ITEM, DOWN, text="v = float(loss)"), "SYNC001", "sync.item", "float"),
    "int": (Wait(ITEM, DOWN, text="n = int(count)"), "SYNC001", "sync.item", "int"),
    "float of item": (Wait(ITEM, DOWN, text="v = float(loss.item())"), "SYNC001", "sync.item", "item"),
    "no source": (Wait(ITEM, DOWN), "SYNC001", "sync.item", "item"),
    "bool": (Wait(BOOL, DOWN, text="if bad:"), "SYNC002", "sync.item", "bool"),
    "format": (Wait(ITEM, DOWN, stack=below("_tensor.py", "__format__")), "SYNC003", "sync.item", "format"),
    "repr": (
        Wait(BOOL, DOWN, stack=(*below("_tensor_str.py", "__init__")[:1], *below("_tensor.py", "__repr__"))),
        "SYNC003",
        "sync.item",
        "repr",
    ),
    "tolist": (
        Wait(TO, DOWN_PAGEABLE, 64, before=("aten::resolve_conj", "aten::resolve_neg")),
        "SYNC004",
        "sync.item",
        "tolist",
    ),
    "tolist by its text": (Wait(TO, DOWN_PAGEABLE, 64, text="n = sizes.tolist()"), "SYNC004", "sync.item", "tolist"),
    "nonzero": (Wait(("aten::nonzero",), DOWN), "SYNC005", "sync.shape", "nonzero"),
    "where": (Wait(("aten::where", "aten::nonzero_numpy", "aten::nonzero"), DOWN), "SYNC005", "sync.shape", "where"),
    "mask": (Wait(("aten::index", "aten::nonzero"), DOWN), "SYNC006", "sync.shape", "mask_index"),
    "mask assign": (
        Wait(("aten::index_put_", "aten::_index_put_impl_", "aten::nonzero"), DOWN),
        "SYNC006",
        "sync.shape",
        "mask_assign",
    ),
    "masked_select": (Wait(("aten::masked_select", "aten::nonzero"), DOWN), "SYNC006", "sync.shape", "masked_select"),
    "repeat_interleave": (Wait(("aten::repeat_interleave", *ITEM), DOWN), "SYNC007", "sync.shape", "repeat_interleave"),
    "bincount": (Wait(("aten::bincount", *ITEM), DOWN), "SYNC008", "sync.shape", "bincount"),
    "histc": (Wait(("aten::histc", *ITEM), DOWN), "SYNC008", "sync.shape", "histc"),
    "unique": (Wait(("aten::_unique2", *ITEM), DOWN), "SYNC009", "sync.shape", "unique"),
    "one_hot": (Wait(("aten::one_hot", *ITEM), DOWN), "SYNC010", "sync.shape", "one_hot"),
    "upload": (Wait(TO, UP, 1 << 20, text="y = labels.to(dev)"), "SYNC011", "sync.h2d_pageable", "to"),
    "literal": (Wait(TO, UP, 16, text="a = torch.tensor([1, 2], device=d)"), "SYNC012", "sync.h2d_pageable", "tensor"),
    "literal without its text": (
        Wait(TO, UP, 16, after=("aten::lift_fresh", "aten::detach_")),
        "SYNC012",
        "sync.h2d_pageable",
        "tensor",
    ),
    "list index by what follows": (
        Wait(TO, UP, 24, after=("aten::lift_fresh", "aten::index")),
        "SYNC013",
        "sync.h2d_pageable",
        "index",
    ),
    "list index": (Wait(("aten::index", *TO), UP, 24), "SYNC013", "sync.h2d_pageable", "index"),
    "upload of pinned": (Wait(TO, UP_PINNED, 1 << 20), "SYNC014", "sync.h2d_pinned", "to"),
    "held upload": (
        Wait(TO, UP, 1 << 26, call="", held_us=100, copy_held_us=1_900),
        "SYNC015",
        "copy.pageable_h2d",
        "to",
    ),
    "staged upload": (
        Wait(TO, UP, 1 << 12, call="", held_us=100, copy_held_us=60, more={"late": True}),
        "SYNC016",
        "copy.staged_h2d",
        "to",
    ),
    "download": (Wait(TO, DOWN_PAGEABLE, 4096, text="x = y.cpu()"), "SYNC017", "sync.d2h", "cpu"),
    "held download": (
        Wait(TO, DOWN_PAGEABLE, 4096, call="", held_us=100, copy_held_us=1_100),
        "SYNC018",
        "copy.pageable_d2h",
        "to",
    ),
    "grad scaler": (
        Wait(ITEM, DOWN, stack=below("amp/grad_scaler.py", "_maybe_opt_step")),
        "SYNC019",
        "sync.item",
        "item",
    ),
    "clip": (Wait(BOOL, DOWN, stack=below("nn/utils/clip_grad.py", "_get_total_norm")), "SYNC020", "sync.item", "bool"),
    "distribution": (
        Wait(BOOL, DOWN, stack=below("distributions/distribution.py", "__init__")),
        "SYNC021",
        "sync.item",
        "bool",
    ),
    "optimizer": (Wait(ITEM, DOWN, stack=below("optim/optimizer.py", "_get_value")), "SYNC022", "sync.item", "item"),
    "generate": (
        Wait(BOOL, DOWN, stack=(("/venv/site-packages/transformers/generation/utils.py", 3, "_sample"), USER)),
        "SYNC023",
        "sync.item",
        "bool",
    ),
    "linalg": (
        Wait(("aten::linalg_inv", "aten::_linalg_check_errors", *ITEM), DOWN),
        "SYNC024",
        "sync.check",
        "linalg_inv",
    ),
    "equal": (Wait(("aten::equal", *ITEM), DOWN), "SYNC025", "sync.item", "equal"),
    "device": (Wait((), call="cudaDeviceSynchronize"), "SYNC026", "sync.explicit", "synchronize"),
    "stream": (Wait(()), "SYNC027", "sync.explicit", "synchronize"),
    "event": (Wait((), call="cudaEventSynchronize"), "SYNC028", "sync.event", "synchronize"),
    "barrier": (
        Wait((), stack=below("distributed/distributed_c10d.py", "barrier")),
        "SYNC029",
        "collective.wait",
        "barrier",
    ),
    "objects": (
        Wait(ITEM, DOWN, stack=below("distributed/distributed_c10d.py", "all_gather_object")),
        "SYNC030",
        "sync.item",
        "object",
    ),
    "compiled": (
        Wait(ITEM, DOWN, around=((Kind.OP, "Torch-Compiled Region: 0/0"),)),
        "SYNC038",
        "sync.item",
        "item",
    ),
    "after a graph": (Wait(ITEM, DOWN, launch="cudaGraphLaunch"), "SYNC039", "sync.item", "item"),
    "copy of an extension": (
        Wait((), DOWN, 512, call="", more={"copy_call": "cudaMemcpy"}),
        "SYNC017",
        "sync.d2h",
        "copy",
    ),
    "operator of its own": (Wait(("aten::mode",)), "SYNC043", "sync.in_op", "mode"),
    "SyncBatchNorm": (
        Wait(("aten::index", "aten::nonzero"), DOWN, stack=below("nn/modules/_functions.py", "forward")),
        "SYNC046",
        "sync.shape",
        "syncbn",
    ),
    "one element": (
        Wait(("aten::copy_",), UP, 4, before=("aten::select",), text="x[3] = 0"),
        "SYNC047",
        "sync.h2d_pageable",
        "setitem",
    ),
    "backward of a mask": (
        Wait(
            ("aten::index", "aten::nonzero"),
            DOWN,
            around=((Kind.OP, "autograd::engine::evaluate_function: IndexBackward0"), (Kind.OP, "IndexBackward0")),
        ),
        "SYNC048",
        "sync.shape",
        "mask_backward",
    ),
    "rate limiter": (
        Wait((), call="cudaEventSynchronize", around=((Kind.MARK, "FullyShardedDataParallel.rate_limiter"),)),
        "SYNC049",
        "sync.event",
        "rate_limiter",
    ),
    "on ROCm": (
        Wait(ITEM, "DtoH (Device -> Host)", call="", more={"copy_call": "hipMemcpyWithStream"}, copy_held_us=990),
        "SYNC001",
        "sync.item",
        "item",
    ),
    "on XPU": (Wait((), call="urQueueFinish"), "SYNC027", "sync.explicit", "synchronize"),
    "without operators": (Wait((), DOWN), "SYNC001", "sync.item", "item"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_wait_goes_to_the_rule_that_knows_it(name):
    wait, rule, kind, op = CASES[name]

    (found,) = findings_of(wait)

    assert (found.rule, found.kind, found.op) == (rule, kind, op)
    assert (found.count, found.waits) == (5, 5)
    assert found.stall_ns > 0


def test_a_finding_names_the_users_line_and_the_librarys():
    wait = CASES["clip"][0]

    (found,) = findings_of(wait)

    assert (found.place.file, found.place.line, found.place.function) == USER
    assert found.library_place.file.endswith("clip_grad.py")


def test_a_read_on_the_cpu_is_no_wait():
    wait = Wait(ITEM, call="")

    assert findings_of(wait) == []


def test_a_pinned_copy_that_does_not_wait_is_no_finding():
    assert findings_of(Wait(TO, UP_PINNED, 1 << 20, call="")) == []


def test_a_loop_is_one_finding_with_a_count():
    (found,) = findings_of(Wait(ITEM, DOWN, text="total += float((p * g).sum())"), times=400)

    assert found.count == 400


def test_the_number_of_a_step_makes_no_difference():
    steps = [(Kind.MARK, f"ProfilerStep#{i}", CPU, 3_000 * i, 3_000 * i + 2_990) for i in range(6)]
    frees = [(Kind.CALL, "cudaFree", CPU, 3_000 * i + 1_500, 3_000 * i + 1_900, 800 + i) for i in range(6)]
    takes = [(Kind.CALL, "cudaMalloc", CPU, 3_000 * i + 100, 3_000 * i + 200, 700 + i) for i in range(6)]
    work = [(Kind.CALL, "cudaLaunchKernel", CPU, 3_000 * i + 300, 3_000 * i + 305, 1 + i) for i in range(6)]
    work += [(Kind.KERNEL, "k", GPU, 3_000 * i + 310, 3_000 * i + 1_500, 1 + i) for i in range(6)]

    found = {f.rule: f for f in examine(make_timeline(*steps, *frees, *takes, *work)).findings}

    assert found["SYNC032"].count == 6


def test_two_lines_are_two_findings_with_names_of_their_own():
    first = findings_of(Wait(ITEM, DOWN))[0]
    second = findings_of(Wait(ITEM, DOWN, stack=(("/home/me/train.py", 8, "step"),)))[0]
    again = findings_of(Wait(ITEM, DOWN, held_us=500))[0]

    assert first.id != second.id
    assert first.id == again.id


def test_every_rule_about_stalls_is_met_by_a_case():
    elsewhere = {"SYNC031", "SYNC032", "SYNC033", "SYNC034", "SYNC035", "SYNC036", "SYNC037", "SYNC040", "SYNC041"}
    elsewhere |= {"SYNC042", "SYNC044", "SYNC050"}  # see test_rules_other.py
    asked = {module.RULE.id for module in rule_modules() if hasattr(module, "matches")}

    assert asked - {rule for _, rule, _, _ in CASES.values()} == elsewhere
