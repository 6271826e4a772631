"""The program that marks_cost.py measures: three loops, and how far the host gets behind a busy GPU."""

import json
import time

import torch


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


def training(size, layers, batch, dtype):
    with torch.device("cuda"):  # a billion weights take the CPU longer than all that is measured
        net = torch.nn.Sequential(*(Block(size) for _ in range(layers))).to(dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    data = torch.randn(batch, size, device="cuda", dtype=dtype)
    return lambda: train(net, optimizer, data)


def measure(step, count):
    taken = []
    for _ in range(count):
        torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return taken


def first_wait():
    big = torch.randn(8192, 8192, device="cuda")
    small = torch.zeros(1, device="cuda")
    big @ big
    torch.cuda.synchronize()
    for _ in range(30):
        big @ big
    for number in range(2500):
        before = time.perf_counter()
        small.add_(1)
        if time.perf_counter() - before > 2e-3:
            return number
    return -1


start = torch.randn(64, 64, device="cuda")
weight = torch.randn(64, 64, device="cuda") / 8
loops = {
    "launch": (lambda: small_ops(start, weight), 100),
    "layers": (training(256, 24, 64, torch.float32), 30),
    "gpu": (training(8192, 4, 4096, torch.bfloat16), 6),
}
steps = {name: [] for name in loops}
for turn in range(5):  # in turns: what disturbs the machine for a moment does not fall on one loop alone
    for name, (step, count) in loops.items():
        taken = measure(step, count)
        if turn:
            steps[name] += taken
print(json.dumps({"steps": steps, "waited": first_wait()}))
