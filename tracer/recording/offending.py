"""Which values an operator on the GPU will stumble over, found on the CPU before it runs.

Only for the rerun: it reads the inputs of index operators back to the host, which waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

SHOWN = 3  # values of one tensor that are quoted

Rename = Callable[[str, torch.Tensor], str]  # an argument's name and value -> what the user calls it


@dataclass(frozen=True, slots=True, eq=False)
class Wrong:
    """Values of one tensor that an operator cannot take."""

    name: str
    given: torch.Tensor  # as it was passed
    host: torch.Tensor  # the same or what was made of it, on the CPU
    where: torch.Tensor  # true for each wrong value
    valid: str


def check(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], rename: Rename | None = None) -> list[str]:
    """Sentences such as "ids[3, 7] = 1000, valid 0..999"; none if all is well or the operator is not known."""
    schema = getattr(func, "_schema", None)  # operators that take functions have none
    look = _LOOKS.get(schema.name.removeprefix("aten::")) if schema is not None else None
    if look is None or schema is None:
        return []
    given = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)}
    given.update(kwargs)
    texts: list[str] = []
    for wrong in look(given):
        if wrong.where.any():
            texts.extend(_quote(wrong, rename(wrong.name, wrong.given) if rename else wrong.name))
    return texts


def _quote(wrong: Wrong, name: str) -> Iterator[str]:
    where = wrong.where.nonzero()
    for position in where[:SHOWN].tolist():
        value = wrong.host[tuple(position)].item()
        at = f"[{', '.join(map(str, position))}]" if position else ""
        yield f"{name}{at} = {f'{value:g}' if isinstance(value, float) else value}, valid {wrong.valid}"
    if len(where) > SHOWN:
        yield f"{name}: {len(where)} of {wrong.host.numel()} values are outside"


def _outside(
    name: str, index: torch.Tensor, size: int, *, wraps: bool = False, ignore: int | None = None
) -> Iterator[Wrong]:
    host = index.detach().cpu()
    low = -size if wraps else 0
    where = (host < low) | (host >= size)
    valid = f"{low}..{size - 1}"
    if ignore is not None:
        where &= host != ignore
        if not 0 <= ignore < size:
            valid += f" or {ignore} (ignored)"
    yield Wrong(name, index, host, where, valid)


def _embedding(given: dict[str, Any]) -> Iterator[Wrong]:
    return _outside("indices", given["indices"], given["weight"].shape[0])


def _along_dim(given: dict[str, Any]) -> Iterator[Wrong]:
    source = given["self"]
    return _outside("index", given["index"], source.shape[given["dim"]] if source.dim() else 1)


def _advanced(given: dict[str, Any]) -> Iterator[Wrong]:
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


def _target(given: dict[str, Any]) -> Iterator[Wrong]:
    classes = given["self"].shape[1 if given["self"].dim() > 1 else 0]
    return _outside("target", given["target"], classes, ignore=given.get("ignore_index", -100))


def _probability(given: dict[str, Any]) -> Iterator[Wrong]:
    host = given["self"].detach().float().cpu()
    yield Wrong("input", given["self"], host, ~((host >= 0) & (host <= 1)), "0..1")


def _weights(given: dict[str, Any]) -> Iterator[Wrong]:
    host = given["self"].detach().float().cpu()
    yield Wrong("probs", given["self"], host, ~((host >= 0) & host.isfinite()), "finite and not negative")
    sums = host.clamp(min=0).sum(-1)
    yield Wrong("the sum of probs", sums, sums, sums <= 0, "more than 0")


def _condition(given: dict[str, Any]) -> Iterator[Wrong]:
    value = given["self"].detach().cpu()
    yield Wrong("condition", given["self"], value, value == 0, "true")


_LOOKS: dict[str, Callable[[dict[str, Any]], Iterator[Wrong]]] = {
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
