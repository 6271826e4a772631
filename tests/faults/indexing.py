"""Advanced indexing with two index tensors, one of them too large."""

import torch
from ahead import keep_busy

grid = torch.randn(16, 16, 8, device="cuda")
ys = torch.randint(0, 16, (50,), device="cuda")
xs = torch.randint(0, 16, (50,), device="cuda")
xs[49] = 16
keep_busy()
cells = grid[ys, xs]  # FAULT
out = cells.relu()
keep_busy()
print(out.sum().item())
