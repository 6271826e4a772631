"""The program that marks_cost.py measures: `launch`, `layers` or `gpu`."""

import json
import sys
import time

import torch

kind = sys.argv[1]


def small_ops(x, w):
    for _ in range(40):
        x = x @ w
        x = x + 1
        x = x * 0.5
        x = x.relu()
        x = x - 0.1
    return x


def train(net, optimizer, data):
    loss = net(data).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


class Block(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = torch.nn.LayerNorm(size)
        self.up = torch.nn.Linear(size, 2 * size)
        self.down = torch.nn.Linear(2 * size, size)

    def forward(self, x):
        inner = self.up(self.norm(x))
        inner = torch.nn.functional.gelu(inner)
        return x + self.down(inner)


if kind == "launch":
    start = torch.randn(64, 64, device="cuda")
    weight = torch.randn(64, 64, device="cuda") / 8
    step = lambda: small_ops(start, weight)
else:
    size, layers, batch = (256, 24, 64) if kind == "layers" else (8192, 4, 4096)
    dtype = torch.float32 if kind == "layers" else torch.bfloat16
    net = torch.nn.Sequential(*(Block(size) for _ in range(layers))).to("cuda", dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    data = torch.randn(batch, size, device="cuda", dtype=dtype)
    step = lambda: train(net, optimizer, data)

steps = []
for _ in range(35 if kind != "gpu" else 12):
    torch.cuda.synchronize()
    began = time.perf_counter()
    step()
    torch.cuda.synchronize()
    steps.append(time.perf_counter() - began)

# Behind a busy GPU: the first launch that has to wait.
big = torch.randn(8192, 8192, device="cuda")
small = torch.zeros(1, device="cuda")
big @ big
torch.cuda.synchronize()
for _ in range(30):
    big @ big
waited = -1
for number in range(2500):
    before = time.perf_counter()
    small.add_(1)
    if time.perf_counter() - before > 2e-3:
        waited = number
        break
torch.cuda.synchronize()
print(json.dumps({"steps": steps[5:], "waited": waited}))
