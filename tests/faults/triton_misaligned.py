"""A Triton kernel that writes a float to an odd address."""

import torch
import triton
import triton.language as tl
from ahead import keep_busy


@triton.jit
def poke(where, offset):
    odd = (where.to(tl.pointer_type(tl.int8)) + offset).to(tl.pointer_type(tl.float32))
    tl.store(odd, 1.0)


buffer = torch.zeros(16, device="cuda")
poke[(1,)](buffer, 4)
keep_busy()
poke[(1,)](buffer, 3)  # FAULT
after = buffer * 2
keep_busy()
print(after.sum().item())
