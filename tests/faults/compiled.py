"""A compiled function looks up an index that is too large."""

import torch
from ahead import keep_busy


@torch.compile
def pick(table, ids):
    return (table[ids] * 2).sum(1)


table = torch.randn(100, 16, device="cuda")
ids = torch.zeros(32, dtype=torch.long, device="cuda")
pick(table, ids)
bad = ids + 100
keep_busy()
out = pick(table, bad)  # FAULT
more = out + 1
keep_busy()
print(more.sum().item())
