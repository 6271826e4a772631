"""The fault is on a side stream while the main stream is busy."""

import torch
from ahead import keep_busy

table = torch.nn.Embedding(500, 16).cuda()
ids = torch.full((64,), 500, device="cuda")
side = torch.cuda.Stream()
torch.cuda.synchronize()
busy = keep_busy(40)
with torch.cuda.stream(side):
    twice = ids * 1
    vectors = table(twice)  # FAULT
    total = vectors.sum()
busy = keep_busy(40)
print(busy[0, 0].item())
