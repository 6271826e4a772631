"""GradScaler.step() reads whether a gradient is infinite; fixed: the optimizer steps without asking."""

import torch
from common import DEVICE, STALL, drive, host_work, mlp

model = mlp(8, 2048, torch.float32)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
scaler = torch.amp.GradScaler(DEVICE)
x = torch.randn(4096, 2048, device=DEVICE)


def step(i):
    optimizer.zero_grad()
    with torch.autocast(DEVICE, torch.float16):
        loss = model(x).float().pow(2).mean()
    scaler.scale(loss).backward()
    if STALL:
        scaler.step(optimizer)
    else:
        scaler.unscale_(optimizer)
        optimizer.step()
    scaler.update()
    host_work(2.0)


drive(step)
