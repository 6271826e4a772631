"""The guilty op comes on a line whose callee has run lines of its own."""

import torch
from ahead import keep_busy


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(32, 32)
        self.second = torch.nn.Linear(32, 10)

    def forward(self, x):
        x = self.first(x)
        x = x.relu()
        return self.second(x)


net = Net().cuda()
data = torch.randn(128, 32, device="cuda")
labels = torch.full((128,), 10, device="cuda")
keep_busy()
loss = torch.nn.functional.nll_loss(net(data), labels)  # FAULT
keep_busy()
print(loss.item())
