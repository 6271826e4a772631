"""Data-parallel training on two processes: NCCL on GPUs, gloo without."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

GPUS = torch.cuda.device_count()


def main() -> None:
    local = int(os.environ["LOCAL_RANK"])
    on_gpu = int(os.environ["LOCAL_WORLD_SIZE"]) <= GPUS
    device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    width = 2048 if on_gpu else 64
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(8))).to(device)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=1e-3)
    for step in range(60):
        optimizer.zero_grad()
        loss = parallel(torch.randn(64, width, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        if step % 2 == 0:
            loss.item()  # the host waits for this rank's GPU, and through all-reduce for the other's
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
