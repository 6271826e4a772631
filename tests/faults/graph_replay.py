"""A CUDA graph is replayed with an index that was fine when it was captured."""

import torch
from ahead import keep_busy

table = torch.randn(100, 16, device="cuda")
static_ids = torch.zeros(32, dtype=torch.long, device="cuda")
warm = table[static_ids].sum()
side = torch.cuda.Stream()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, stream=side):
    picked = table[static_ids]
    answer = picked.sum()
graph.replay()
keep_busy()
static_ids.fill_(100)
graph.replay()  # FAULT
copy = answer * 2
keep_busy()
print(copy.item())
