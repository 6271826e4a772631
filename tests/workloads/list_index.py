"""Indexing with a Python list uploads it and waits; fixed: the index lies on the GPU."""

import torch
from common import BF16, DEVICE, STALL, drive

w = torch.randn(4096, 4096, device=DEVICE, dtype=BF16) / 64
x = torch.randn(4096, 4096, device=DEVICE, dtype=BF16)
rows = list(range(0, 4096, 2))
index = torch.tensor(rows, device=DEVICE)


def step(i):
    h = x
    for _ in range(8):
        h = h @ w
        part = h[rows] if STALL else h[index]
        part.mul_(0.5)


drive(step)
