"""A class label one past the last class, in the third step."""

import torch
from ahead import keep_busy

net = torch.nn.Linear(64, 10).cuda()
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
data = torch.randn(256, 64, device="cuda")
labels = torch.randint(0, 10, (256,), device="cuda")
for step in range(5):
    if step == 2:
        labels = labels + 1
        labels[5] = 10
    keep_busy(5)
    loss = torch.nn.functional.cross_entropy(net(data), labels)  # FAULT
    sgd.zero_grad()
    loss.backward()
    sgd.step()
torch.cuda.synchronize()
