"""scatter_add into a histogram that is one bin short."""

import torch
from ahead import keep_busy

bins = torch.randint(0, 33, (4096,), device="cuda")
bins[0] = 32
keep_busy()
counts = torch.zeros(32, device="cuda")
ones = torch.ones(4096, device="cuda")
counts.scatter_add_(0, bins, ones)  # FAULT
share = counts / counts.sum()
keep_busy()
print(share.max().item())
