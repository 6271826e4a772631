"""A boolean mask as an index must count its True values; fixed: the count is known, nonzero_static."""

import torch
from common import BF16, DEVICE, STALL, drive, host_work, mlp

model = mlp(6, 2048)
x = torch.randn(8192, 2048, device=DEVICE, dtype=BF16)
mask = torch.arange(8192, device=DEVICE) % 2 == 0


def step(i):
    with torch.no_grad():
        h = model(x)
        if STALL:
            kept = h[mask]
        else:
            kept = h[torch.nonzero_static(mask, size=4096).squeeze(1)]
        model(kept)
    host_work(1.0)


drive(step)
