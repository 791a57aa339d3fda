"""Fit a multilayer perceptron to a generated surface on all GPUs of a machine.

The data lie shuffled already and nothing in the network depends on a batch as a whole,
so that equal batches give equal weights however many devices share them.
"""

import argparse
import os

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Surface(Dataset):
    def __init__(self, size, seed):
        generator = torch.Generator().manual_seed(seed)
        self.points = 2 * torch.rand(size, 2, generator=generator) - 1
        x, y = self.points.unbind(dim=1)
        self.heights = (x * x - 0.5 * y).unsqueeze(1)

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        return self.points[index], self.heights[index]


class Perceptron(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.hidden = nn.Sequential(
            nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()
        )
        self.output = nn.Linear(width, 1)

    def forward(self, points):
        return self.output(self.hidden(points))


def main():
    parser = argparse.ArgumentParser(description="Fit a surface")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--output", default="surface.pt")
    parser.add_argument("--resume", default=None)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_set = Surface(512, seed=1)
    test_set = Surface(128, seed=2)
    train_loader = DataLoader(
        train_set,
        batch_size=args.batch_size,
        num_workers=args.workers,
        pin_memory=True,
    )
    test_loader = DataLoader(
        test_set, batch_size=args.batch_size, num_workers=args.workers, pin_memory=True
    )

    model = Perceptron().to(device)
    if args.resume is not None and os.path.exists(args.resume):
        model.load_state_dict(torch.load(args.resume, map_location=device))
        print("loaded", args.resume)
    model = nn.DataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.MSELoss()

    for epoch in range(args.epochs):
        model.train()
        train_loss = 0.0
        for points, heights in train_loader:
            points = points.to(device, non_blocking=True)
            heights = heights.to(device, non_blocking=True)
            optimizer.zero_grad()
            loss = criterion(model(points), heights)
            loss.backward()
            optimizer.step()
            train_loss += loss.item() * len(points)
        print("epoch", epoch, "train", repr(train_loss / len(train_set)))

        model.eval()
        test_loss = 0.0
        with torch.no_grad():
            for points, heights in test_loader:
                points = points.to(device, non_blocking=True)
                heights = heights.to(device, non_blocking=True)
                test_loss += criterion(model(points), heights).item() * len(points)
        print("epoch", epoch, "test", repr(test_loss / len(test_set)))

        torch.save(model.module.state_dict(), args.output)


if __name__ == "__main__":
    main()
