# IS23: host and device work are equal; the read serialises them, removing it nearly halves the step
import time

import torch

DEV = "cuda" if torch.cuda.is_available() else "cpu"
BIG = DEV == "cuda"
N, REP, STEPS = (4096, 20, 20) if BIG else (64, 2, 20)
DT = torch.bfloat16 if BIG else torch.float32
w = torch.randn(N, N, device=DEV, dtype=DT) / N**0.5
x = torch.randn(N, N, device=DEV, dtype=DT)


def queue_work(h, n=REP):
    for _ in range(n):
        h = h @ w
    return h


for step in range(STEPS):
    h = queue_work(x)
    v = float(h[0, 0])
    t_end = time.perf_counter() + (0.005 if BIG else 0.0005)
    while time.perf_counter() < t_end:
        pass
print(type(v))
