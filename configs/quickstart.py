"""A small training loop: batches from a DataLoader, a backward pass, and the loss read on every step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FEATURES, WIDTH, BATCH = (256, 4096, 256) if DEVICE == "cuda" else (16, 64, 64)


def main() -> None:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(40 * BATCH, FEATURES), torch.randn(40 * BATCH, 1))
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    hidden = [layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    model = nn.Sequential(nn.Linear(FEATURES, WIDTH), *hidden, nn.Linear(WIDTH, 1)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    total = 0.0
    for inputs, targets in loader:
        inputs, targets = inputs.to(DEVICE), targets.to(DEVICE)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()  # the host waits for the GPU, on every step
    print(f"mean loss {total / len(loader):.4f} on {DEVICE}")


if __name__ == "__main__":
    main()
