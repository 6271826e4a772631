"""The backward of a custom function reads a wrong index."""

import torch
from ahead import keep_busy


class Pick(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values * 1

    @staticmethod
    def backward(ctx, grad):
        keep_busy(5)
        ids = torch.full((4,), grad.shape[0], device="cuda")
        picked = grad.index_select(0, ids)  # FAULT
        return grad + picked.sum()


leaf = torch.randn(64, device="cuda", requires_grad=True)
keep_busy()
loss = Pick.apply(leaf * 2).sum()
loss.backward()
keep_busy()
print(leaf.grad.sum().item())
