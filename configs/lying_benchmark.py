"""Times a matrix product as many people do: the clock is read while the GPU is still working."""

import time

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
size = 4096 if device == "cuda" else 256
a = torch.randn(size, size, device=device)
b = torch.randn(size, size, device=device)

for run in range(12):
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(20):
        c = a @ b
    claimed = time.perf_counter() - start
    print(f"run {run}: {claimed / 20 * 1e6:.1f} us for one product")
