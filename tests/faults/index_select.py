"""index_select past the last row."""

import torch
from ahead import keep_busy

rows = torch.randn(256, 32, device="cuda")
chosen = torch.tensor([3, 255, 256], device="cuda")
keep_busy()
part = rows.index_select(0, chosen)  # FAULT
norm = part.norm(dim=1)
keep_busy()
torch.cuda.synchronize()
