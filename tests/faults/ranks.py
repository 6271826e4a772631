"""Two ranks share the work; the data of the second holds a wrong label."""

import os

import torch
from ahead import keep_busy


def train(rank):
    os.environ["RANK"] = str(rank)
    net = torch.nn.Linear(64, 10).cuda()
    data = torch.randn(256, 64, device="cuda")
    labels = torch.randint(0, 10, (256,), device="cuda")
    for step in range(4):
        if rank == 1 and step == 2:
            labels[0] = -1
        keep_busy(5)
        loss = torch.nn.functional.cross_entropy(net(data), labels)  # FAULT
        loss.backward()
    torch.cuda.synchronize()


if __name__ == "__main__":
    torch.multiprocessing.spawn(train, nprocs=2)
