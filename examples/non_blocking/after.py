"""Fit a network to generated measurements that come in dictionaries."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Measurements(Dataset):
    """Readings of eight sensors, a mask of those that work, and what they should add up to."""

    def __init__(self, size, seed):
        generator = torch.Generator().manual_seed(seed)
        self.readings = torch.randn(size, 8, generator=generator)
        self.working = torch.rand(size, 8, generator=generator) > 0.2
        self.target = (self.readings * self.working).sum(dim=1, keepdim=True).tanh()

    def __len__(self):
        return len(self.target)

    def __getitem__(self, index):
        return {
            "readings": self.readings[index],
            "working": self.working[index],
            "target": self.target[index],
        }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    loader_args = {
        "batch_size": 32,
        "num_workers": args.workers,
        "persistent_workers": args.workers > 0,
        "pin_memory": torch.cuda.is_available(),
    }
    train_loader = DataLoader(Measurements(256, seed=1), shuffle=True, **loader_args)
    test_loader = DataLoader(Measurements(64, seed=2), **loader_args)

    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, fused=device.type == "cuda"
    )
    use_amp = device.type == "cuda"
    amp_dtype = (
        torch.bfloat16
        if use_amp and torch.cuda.get_device_capability()[0] >= 8
        else torch.float16
    )
    scaler = torch.amp.GradScaler(
        "cuda", enabled=use_amp and amp_dtype is torch.float16
    )
    loss_function = nn.MSELoss()

    for epoch in range(1, args.epochs + 1):
        model.train()
        for batch in train_loader:
            readings = batch["readings"].to(device, non_blocking=True)
            working = batch["working"].to(
                device=device, dtype=torch.float32, non_blocking=True
            )
            target = batch["target"].to(device, non_blocking=True)
            inputs = torch.cat([readings * working, working], dim=1)
            with torch.autocast("cuda", dtype=amp_dtype, enabled=use_amp):
                loss = loss_function(model(inputs), target)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

        model.eval()
        test_loss = 0.0
        with torch.no_grad():
            for batch in test_loader:
                batch = {
                    key: value.to(device, non_blocking=True)
                    for key, value in batch.items()
                }
                working = batch["working"].float()
                inputs = torch.cat([batch["readings"] * working, working], dim=1)
                outputs = model(inputs)
                test_loss = (
                    test_loss
                    + loss_function(outputs, batch["target"]).detach().double()
                )
                worst = (outputs - batch["target"]).abs().max().to("cpu")
            test_loss = float(test_loss)
        print(f"epoch {epoch}", repr(test_loss / len(test_loader)), repr(float(worst)))


if __name__ == "__main__":
    main()
