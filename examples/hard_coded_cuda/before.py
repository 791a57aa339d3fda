"""Train a siamese network to tell whether two generated signals have one source. Needs a GPU."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class SignalPairs(Dataset):
    """Pairs of sampled sine waves; the label says whether their frequencies agree."""

    def __init__(self, size, length=64, seed=0):
        generator = torch.Generator().manual_seed(seed)
        steps = torch.linspace(0, 6.28, length)
        frequency = torch.randint(1, 8, (size, 2), generator=generator)
        frequency[::2, 1] = frequency[::2, 0]
        phase = 6.28 * torch.rand(size, 2, 1, generator=generator)
        self.signals = torch.sin(frequency.unsqueeze(2) * steps + phase)
        self.same = (frequency[:, 0] == frequency[:, 1]).float()

    def __len__(self):
        return len(self.same)

    def __getitem__(self, index):
        left, right = self.signals[index]
        return left.unsqueeze(0), right.unsqueeze(0), self.same[index]


class Siamese(nn.Module):
    def __init__(self, features=16):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv1d(1, features, 9, stride=2),
            nn.ReLU(),
            nn.Conv1d(features, features, 9, stride=2),
            nn.ReLU(),
            nn.AdaptiveMaxPool1d(4),
            nn.Flatten(),
        )
        self.head = nn.Linear(4 * features, 1)

    def forward(self, left, right):
        distance = (self.encoder(left) - self.encoder(right)).abs()
        return self.head(distance).squeeze(1)


def validate(model, loader):
    model.eval()
    hits = torch.zeros(1).cuda()
    with torch.no_grad():
        for left, right, same in loader:
            left, right, same = left.cuda(), right.cuda(), same.cuda()
            hits += ((model(left, right) > 0).float() == same).sum()
    return hits.item() / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--output", default="siamese.pt")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True

    train_loader = DataLoader(
        SignalPairs(384, seed=1),
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=True,
    )
    val_loader = DataLoader(
        SignalPairs(128, seed=2),
        batch_size=args.batch_size,
        shuffle=False,
    )

    model = Siamese()
    model = nn.DataParallel(model).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    positive_weight = torch.tensor([1.5]).cuda()

    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for left, right, same in train_loader:
            left = left.cuda()
            right = right.cuda()
            same = same.cuda()
            optimizer.zero_grad()
            logits = model(left, right)
            loss = F.binary_cross_entropy_with_logits(
                logits, same, pos_weight=positive_weight
            )
            loss.backward()
            optimizer.step()
            total += loss.item()
        accuracy = validate(model, val_loader)
        print("epoch %d" % epoch, repr(total / len(train_loader)), repr(accuracy))

    torch.save(model.module.state_dict(), args.output)


if __name__ == "__main__":
    main()
