"""A helper thread launches the guilty work; the main thread is told."""

import threading

import torch
from ahead import keep_busy

table = torch.randn(100, 16, device="cuda")


def look_up(number):
    ids = torch.full((32,), number, device="cuda")
    picked = table.index_select(0, ids)  # FAULT
    return picked.sum()


keep_busy()
helper = threading.Thread(target=look_up, args=(100,))
helper.start()
helper.join()
keep_busy()
torch.cuda.synchronize()
