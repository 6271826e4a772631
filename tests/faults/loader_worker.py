"""A spawned DataLoader worker uses the GPU and meets the error there."""

import torch


class OnTheGpu(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, at):
        table = torch.randn(10, 4, device="cuda")
        ids = torch.tensor([at * 4], device="cuda")
        picked = table.index_select(0, ids)  # FAULT
        return picked.sum().item()


if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(OnTheGpu(), num_workers=1, multiprocessing_context="spawn")
    for value in loader:
        print(value)
