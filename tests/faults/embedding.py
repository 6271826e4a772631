"""A token id outside the vocabulary."""

import torch
from ahead import keep_busy

table = torch.nn.Embedding(1000, 64).cuda()
ids = torch.randint(0, 1000, (32, 128), device="cuda")
ids[3, 7] = 1000
keep_busy()
vectors = table(ids)  # FAULT
pooled = vectors.mean(1) * 2.0
keep_busy()
print(pooled.sum().item())
