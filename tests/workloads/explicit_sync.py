"""torch.cuda.synchronize() in every step; fixed: without it."""

import torch
from common import BF16, DEVICE, STALL, drive, host_work, mlp

model = mlp(8, 4096)
x = torch.randn(4096, 4096, device=DEVICE, dtype=BF16)


def step(i):
    with torch.no_grad():
        model(x)
    if STALL:
        torch.cuda.synchronize()
    host_work(1.5)


drive(step)
