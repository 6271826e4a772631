"""Control: hundreds of small kernels, the host is the bottleneck; removing the read gains next to nothing."""

import torch
from common import DEVICE, STALL, drive, mlp

model = mlp(24, 128, torch.float32)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)
x = torch.randn(64, 128, device=DEVICE)


def step(i):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    if STALL:
        loss.item()


drive(step)
