"""Which values an operator on the GPU will stumble over, found on the CPU before it runs.

Only for the rerun: it reads the inputs of index operators back to the host, which waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

SHOWN = 3  # values of one tensor that are quoted

Found = Iterator[tuple[str, torch.Tensor, torch.Tensor, str]]  # name, tensor, where it is wrong, what is valid


def check(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Sentences such as "indices[3, 7] = 1000, valid 0..999"; none if all is well or the operator not known."""
    look = _LOOKS.get(func._schema.name.removeprefix("aten::"))
    if look is None:
        return []
    given = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)}
    given.update(kwargs)
    texts = []
    for name, tensor, wrong, valid in look(given):
        texts.extend(_quote(name, tensor, wrong, valid))
    return texts


def _quote(name: str, tensor: torch.Tensor, wrong: torch.Tensor, valid: str) -> list[str]:
    where = wrong.nonzero()
    if not len(where):
        return []
    texts = []
    for position in where[:SHOWN].tolist():
        value = tensor[tuple(position)].item()
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        texts.append(
            f"{name}[{', '.join(map(str, position))}] = {shown}, valid {valid}"
            if position
            else f"{name} = {shown}, valid {valid}"
        )
    if len(where) > SHOWN:
        texts.append(f"{name}: {len(where)} of {tensor.numel()} values are outside")
    return texts


def _outside(name: str, index: torch.Tensor, size: int, *, wraps: bool = False, ignore: int | None = None) -> Found:
    host = index.detach().cpu()
    low = -size if wraps else 0
    wrong = (host < low) | (host >= size)
    if ignore is not None:
        wrong &= host != ignore
    yield (
        name,
        host,
        wrong,
        f"{low}..{size - 1}" + (f" or {ignore} (ignored)" if ignore is not None and ignore < 0 else ""),
    )


def _embedding(given: dict[str, Any]) -> Found:
    return _outside("indices", given["indices"], given["weight"].shape[0])


def _along_dim(given: dict[str, Any]) -> Found:
    source = given["self"]
    return _outside("index", given["index"], source.shape[given["dim"]] if source.dim() else 1)


def _advanced(given: dict[str, Any]) -> Found:
    source = given["self"]
    indices = given["indices"]
    alone = sum(index is not None for index in indices) == 1
    dim = 0
    for number, index in enumerate(indices):
        if index is None:
            dim += 1
        elif index.dtype in (torch.bool, torch.uint8):
            dim += index.dim()  # a mask's size is checked on the host
        else:
            name = "index" if alone else f"index {number}"
            yield from _outside(name, index, source.shape[dim], wraps=True)
            dim += 1


def _target(given: dict[str, Any]) -> Found:
    classes = given["self"].shape[1 if given["self"].dim() > 1 else 0]
    return _outside("target", given["target"], classes, ignore=given.get("ignore_index", -100))


def _probability(given: dict[str, Any]) -> Found:
    host = given["self"].detach().float().cpu()
    yield "input", host, ~((host >= 0) & (host <= 1)), "0..1"


def _weights(given: dict[str, Any]) -> Found:
    host = given["self"].detach().float().cpu()
    yield "probs", host, ~((host >= 0) & host.isfinite()), "finite and not negative"
    sums = host.clamp(min=0).sum(-1)
    yield "probs.sum(-1)", sums, sums <= 0, "more than 0"


def _condition(given: dict[str, Any]) -> Found:
    value = given["self"].detach().cpu()
    yield "condition", value, value == 0, "true"


_LOOKS: dict[str, Callable[[dict[str, Any]], Found]] = {
    **dict.fromkeys(("embedding",), _embedding),
    **dict.fromkeys(
        (
            "gather",
            "scatter",
            "scatter_",
            "scatter_add",
            "scatter_add_",
            "scatter_reduce",
            "scatter_reduce_",
            "index_select",
            "index_add",
            "index_add_",
            "index_copy",
            "index_copy_",
            "index_fill",
            "index_fill_",
        ),
        _along_dim,
    ),
    **dict.fromkeys(("index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"), _advanced),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward", "nll_loss_backward", "nll_loss2d_backward"), _target),
    **dict.fromkeys(("binary_cross_entropy", "binary_cross_entropy_backward"), _probability),
    "multinomial": _weights,
    "_assert_async": _condition,
}
