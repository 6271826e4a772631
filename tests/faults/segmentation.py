"""A mask value of 255 without ignore_index."""

import torch
from ahead import keep_busy

logits = torch.randn(2, 21, 32, 32, device="cuda")
mask = torch.randint(0, 21, (2, 32, 32), device="cuda")
mask[1, 4, 9] = 255
keep_busy()
loss = torch.nn.functional.cross_entropy(logits, mask)  # FAULT
scaled = loss * 0.5
keep_busy()
print(scaled.item())
