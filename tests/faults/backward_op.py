"""The index of a gather is changed behind autograd's back: its backward fails."""

import torch
from ahead import keep_busy

scores = torch.randn(64, 100, device="cuda", requires_grad=True)
picks = torch.randint(0, 100, (64, 5), device="cuda")
doubled = scores * 2
best = torch.gather(doubled, 1, picks)  # FORWARD
loss = (best * best).sum()
picks.data[3, 1] = 100
keep_busy()
loss.backward()  # FAULT
keep_busy()
print(scores.grad.sum().item())
