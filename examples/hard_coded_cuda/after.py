"""Train a siamese network to tell whether two generated signals have one source. Needs a GPU."""

import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
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


def mean_over_processes(value):
    """The mean of a number or tensor over all processes."""
    if process_count() == 1:
        return value
    return sum_over_processes(value) / process_count()


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
    hits = torch.zeros(1, device="cuda")
    with torch.no_grad():
        for left, right, same in loader:
            left, right, same = (
                left.cuda(non_blocking=True),
                right.cuda(non_blocking=True),
                same.cuda(non_blocking=True),
            )
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

    train_set = SignalPairs(384, seed=1)
    sampler = (
        DistributedSampler(train_set, shuffle=True) if process_count() > 1 else None
    )
    train_loader = DataLoader(
        train_set,
        batch_size=batch_share(args.batch_size),
        shuffle=sampler is None,
        drop_last=True,
        pin_memory=True,
        sampler=sampler,
    )
    val_loader = DataLoader(
        SignalPairs(128, seed=2),
        batch_size=args.batch_size,
        shuffle=False,
        pin_memory=True,
    )

    model = Siamese()
    model = distribute(model.cuda())
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, fused=True)
    use_amp = torch.cuda.is_available()
    scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
    positive_weight = torch.tensor([1.5], device="cuda")

    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        if process_count() > 1:
            train_loader.sampler.set_epoch(epoch)
        for left, right, same in train_loader:
            left = left.cuda(non_blocking=True)
            right = right.cuda(non_blocking=True)
            same = same.cuda(non_blocking=True)
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16, enabled=use_amp):
                logits = model(left, right)
                loss = F.binary_cross_entropy_with_logits(
                    logits, same, pos_weight=positive_weight
                )
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            total = total + loss.detach().double()
        total = mean_over_processes(total)
        total = float(total)
        accuracy = validate(model, val_loader)
        if is_main_process():
            print("epoch %d" % epoch, repr(total / len(train_loader)), repr(accuracy))

    if is_main_process():
        torch.save(unwrap(model).state_dict(), args.output)


if __name__ == "__main__":
    setup_distributed()
    try:
        main()
    finally:
        cleanup_distributed()
