"""one_hot with too few classes."""

import torch
from ahead import keep_busy

classes = torch.tensor([0, 1, 2, 9], device="cuda")
keep_busy()
coded = torch.nn.functional.one_hot(classes, num_classes=9)  # FAULT
floats = coded.float()
keep_busy()
print(floats.sum().item())
