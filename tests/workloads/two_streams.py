"""Two streams that wait for each other, and a read; fixed: without the read the streams still wait."""

import torch
from common import BF16, DEVICE, STALL, drive, host_work

w = torch.randn(4096, 4096, device=DEVICE, dtype=BF16) / 64
x = torch.randn(4096, 4096, device=DEVICE, dtype=BF16)
side = torch.cuda.Stream()


def step(i):
    main = torch.cuda.current_stream()
    h = x
    for _ in range(6):
        h = h @ w
    side.wait_stream(main)
    with torch.cuda.stream(side):
        g = h @ w
        for _ in range(3):
            g = g @ w
    h2 = h @ w
    main.wait_stream(side)
    total = (h2 + g).float().mean()
    if STALL:
        total.item()
    host_work(1.0)


drive(step)
