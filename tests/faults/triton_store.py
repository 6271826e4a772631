"""A Triton kernel that writes far outside its buffer."""

import torch
import triton
import triton.language as tl
from ahead import keep_busy


@triton.jit
def poke(where, offset):
    tl.store(where + offset, 1.0)


buffer = torch.zeros(16, device="cuda")
poke[(1,)](buffer, 0)
keep_busy()
poke[(1,)](buffer, 1 << 44)  # FAULT
after = buffer * 2
keep_busy()
print(after.sum().item())
