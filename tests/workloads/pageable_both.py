"""Batch up and result down through pageable memory; fixed: pinned, not waited for, the result read a step later."""

import torch
from common import BF16, DEVICE, STALL, drive, mlp

model = mlp(6, 4096)
batches = [torch.randn(2048, 4096).to(BF16) for _ in range(4)]
results = [torch.empty(2048, 4096, dtype=BF16) for _ in range(2)]
if not STALL:
    batches = [b.pin_memory() for b in batches]
    results = [r.pin_memory() for r in results]


def step(i):
    x = batches[i % 4].to(DEVICE, non_blocking=not STALL)
    with torch.no_grad():
        for _ in range(2):
            x = model(x)
    if STALL:
        x.cpu()
    else:
        results[i % 2].copy_(x, non_blocking=True)


drive(step)
