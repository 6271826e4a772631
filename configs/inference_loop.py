"""Greedy decoding, one token at a time: small kernels, and a host that reads each token back."""

import torch
from torch import nn
from torch.profiler import record_function

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCABULARY, WIDTH, END = 1000, 512 if DEVICE == "cuda" else 64, 0


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.cells = nn.ModuleList(nn.GRUCell(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, token: torch.Tensor, state: list[torch.Tensor]) -> torch.Tensor:
        hidden = self.embedding(token)
        for at, cell in enumerate(self.cells):
            state[at] = hidden = cell(hidden, state[at])
        return self.head(hidden)


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    model = Decoder().to(DEVICE).eval()
    token = torch.ones(1, dtype=torch.long, device=DEVICE)
    state = [torch.zeros(1, WIDTH, device=DEVICE) for _ in model.cells]
    written = 0
    for _ in range(60):
        with record_function("token"):
            token = model(token, state).argmax(dim=-1)
            written += 1
            if token.item() == END:  # the host waits for the GPU before it can launch the next token
                token = torch.ones_like(token)
    print(f"{written} tokens on {DEVICE}")


if __name__ == "__main__":
    main()
