"""Fit a multilayer perceptron to a generated surface on all GPUs of a machine.

The data lie shuffled already and nothing in the network depends on a batch as a whole,
so that equal batches give equal weights however many devices share them.
"""

import argparse
import math
import os

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler


def setup_distributed():
    """Join the processes of torchrun; plain python runs one process and no group."""
    launched = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"} <= set(os.environ)
    if not launched or not torch.distributed.is_available():
        return
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "nccl"
        # from here on "cuda" means this process's own GPU
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group(backend)


def cleanup_distributed():
    """Leave the group that setup_distributed() joined, if any."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def process_count():
    """How many processes train together: one unless torchrun started more."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    return 1


def is_main_process():
    """Whether this is the process that prints, logs and saves for all."""
    return process_count() == 1 or torch.distributed.get_rank() == 0


def distribute(model):
    """Keep a network equal in all processes; with one process it stays as it is."""
    if process_count() == 1:
        return model
    device = next(model.parameters()).device
    gpus = [device] if device.type == "cuda" else None
    return nn.parallel.DistributedDataParallel(model, device_ids=gpus)


def unwrap(model):
    """The network itself, whether or not distribute() has wrapped it."""
    wrapped = isinstance(model, nn.parallel.DistributedDataParallel)
    return model.module if wrapped else model


def batch_share(batch_size):
    """A process's part of a batch, so that all of them together see batch_size."""
    share, rest = divmod(batch_size, process_count())
    if rest:
        raise SystemExit(f"cannot divide batches of {batch_size} by {process_count()}")
    return share


def sum_over_processes(value):
    """The sum of a number or tensor over all processes."""
    if process_count() == 1:
        return value
    device = "cuda" if torch.cuda.is_available() else "cpu"
    total = torch.as_tensor(value).detach().to(device, torch.float64, copy=True)
    torch.distributed.all_reduce(total)
    return total.to(value) if torch.is_tensor(value) else type(value)(total.item())


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
    sampler = (
        DistributedSampler(train_set, shuffle=False) if process_count() > 1 else None
    )
    train_loader = DataLoader(
        train_set,
        batch_size=batch_share(args.batch_size),
        num_workers=math.ceil(args.workers / process_count()),
        pin_memory=True,
        persistent_workers=args.workers > 0,
        sampler=sampler,
    )
    test_loader = DataLoader(
        test_set,
        batch_size=args.batch_size,
        num_workers=math.ceil(args.workers / process_count()),
        pin_memory=True,
        persistent_workers=args.workers > 0,
    )

    model = Perceptron().to(device)
    if args.resume is not None and os.path.exists(args.resume):
        model.load_state_dict(torch.load(args.resume, map_location=device))
        if is_main_process():
            print("loaded", args.resume)
    model = distribute(model)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.05, momentum=0.9, fused=device.type == "cuda"
    )
    use_amp = device.type == "cuda"
    scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
    criterion = nn.MSELoss()

    for epoch in range(args.epochs):
        model.train()
        train_loss = 0.0
        for points, heights in train_loader:
            points = points.to(device, non_blocking=True)
            heights = heights.to(device, non_blocking=True)
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16, enabled=use_amp):
                loss = criterion(model(points), heights)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            train_loss = train_loss + loss.detach().double() * len(points)
        train_loss = sum_over_processes(train_loss)
        train_loss = float(train_loss)
        if is_main_process():
            print("epoch", epoch, "train", repr(train_loss / len(train_set)))

        model.eval()
        test_loss = 0.0
        with torch.no_grad():
            for points, heights in test_loader:
                points = points.to(device, non_blocking=True)
                heights = heights.to(device, non_blocking=True)
                test_loss = test_loss + criterion(
                    model(points), heights
                ).detach().double() * len(points)
            test_loss = float(test_loss)
        if is_main_process():
            print("epoch", epoch, "test", repr(test_loss / len(test_set)))

            torch.save(unwrap(model).state_dict(), args.output)


if __name__ == "__main__":
    setup_distributed()
    try:
        main()
    finally:
        cleanup_distributed()
