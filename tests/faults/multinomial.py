"""Sampling from probabilities of which one is negative."""

import torch
from ahead import keep_busy

weights = torch.rand(8, 50, device="cuda")
weights[2, 3] = -0.5
keep_busy()
drawn = torch.multinomial(weights, 1)  # FAULT
shifted = drawn + 1
keep_busy()
print(shifted.sum().item())
