"""Queues GPU work, so that the host runs ahead of it as in real training."""

import torch

WEIGHT = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) / 64
START = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)


def keep_busy(count=20):
    out = START
    for _ in range(count):
        out = out @ WEIGHT
    return out
