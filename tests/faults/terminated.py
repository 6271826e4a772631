"""std::abort in the middle: no traceback, no clean-up."""

import os

import torch
from ahead import keep_busy

table = torch.nn.Embedding(100, 8).cuda()
ids = torch.full((16,), 100, device="cuda")
keep_busy()
vectors = table(ids)  # FAULT
twice = vectors * 2
keep_busy()
try:
    torch.cuda.synchronize()
except RuntimeError:
    os.abort()
