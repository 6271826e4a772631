"""More launches than the queue holds, then a read and host work; fixed: without the read the host runs ahead."""

import torch
from common import DEVICE, STALL, drive, host_work

x = torch.randn(4096, 4096, device=DEVICE)


def step(i):
    for _ in range(1_400):
        x.mul_(1.0)
    if STALL:
        x[0, 0].item()
    host_work(8.0)


drive(step, 40)
