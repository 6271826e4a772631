"""Logits given to binary_cross_entropy, which wants probabilities."""

import torch
from ahead import keep_busy

logits = torch.randn(4096, device="cuda")
logits[0] = 1.5
truth = torch.ones(4096, device="cuda")
keep_busy()
loss = torch.nn.functional.binary_cross_entropy(logits, truth)  # FAULT
half = loss / 2
keep_busy()
print(half.item())
