"""A hook reads gradient norms on autograd's thread; fixed: the norms stay on the GPU."""

import torch
from common import BF16, DEVICE, STALL, drive, host_work, mlp

model = mlp(8, 4096)
x = torch.randn(4096, 4096, device=DEVICE, dtype=BF16)
norms = []


def keep(gradient):
    norm = gradient.float().norm()
    norms.append(norm.item() if STALL else norm)


for parameter in model.parameters():
    if parameter.ndim == 2:
        parameter.register_hook(keep)


def step(i):
    norms.clear()
    model.zero_grad()
    model(x).float().pow(2).mean().backward()
    host_work(1.0)


drive(step)
