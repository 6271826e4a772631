"""Control: the device is the bottleneck; the read waits long and costs nothing."""

import torch
from common import BF16, DEVICE, STALL, drive

w = torch.randn(8192, 8192, device=DEVICE, dtype=BF16) / 90
x = torch.randn(8192, 8192, device=DEVICE, dtype=BF16)


def step(i):
    h = x
    for _ in range(10):
        h = h @ w
    if STALL and h[0, 0] > 1e9:
        raise SystemExit(1)


drive(step)
