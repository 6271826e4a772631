"""A small language model whose data holds a token that its vocabulary does not have."""

import sys

import torch

VOCABULARY = 1000


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, 256)
        self.mix = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(12)))
        self.head = torch.nn.Linear(256, VOCABULARY)

    def forward(self, ids):
        hidden = self.tokens(ids)
        hidden = self.mix(hidden)
        return self.head(hidden)


def batch(step):
    ids = torch.randint(0, VOCABULARY, (32, 128))
    if step == 3:
        ids[3, 7] = VOCABULARY  # one past the end
    return ids.cuda(non_blocking=True)


def main():
    if not torch.cuda.is_available():
        sys.exit("this program needs a CUDA machine: a CPU would refuse the token at once")
    model = Model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    total = torch.zeros((), device="cuda")
    for step in range(6):
        ids = batch(step)
        scores = model(ids)
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), ids.clamp(max=VOCABULARY - 1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    print("mean loss", total.item() / 6)


if __name__ == "__main__":
    main()
