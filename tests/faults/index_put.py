"""Writing through an index that is too small."""

import torch
from ahead import keep_busy

memory = torch.zeros(128, 4, device="cuda")
where = torch.arange(-129, -120, device="cuda")
keep_busy()
memory[where] = 1.0  # FAULT
after = memory + 1
keep_busy()
print(after.sum().item())
