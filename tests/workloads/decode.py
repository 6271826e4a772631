"""A decode loop reads each token on the host; fixed: the token stays on the GPU."""

import torch
from common import BF16, DEVICE, STALL, drive, mlp

embed = torch.nn.Embedding(32_000, 1024, device=DEVICE, dtype=BF16)
model = mlp(12, 1024)
head = torch.nn.Linear(1024, 32_000, device=DEVICE, dtype=BF16)
start = torch.ones(1, dtype=torch.long, device=DEVICE)


def step(i):
    token, text = start, []
    with torch.no_grad():
        for _ in range(16):
            token = head(model(embed(token))).argmax(-1)
            if STALL:
                text.append(token.item())


drive(step)
