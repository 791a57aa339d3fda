"""Train a small transformer to sort digits, over several small batches a step."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

DIGITS = 10
LENGTH = 6


class Permutations(Dataset):
    """Random digits, and the same digits in order."""

    def __init__(self, size, seed):
        generator = torch.Generator().manual_seed(seed)
        self.digits = torch.randint(0, DIGITS, (size, LENGTH), generator=generator)

    def __len__(self):
        return len(self.digits)

    def __getitem__(self, index):
        digits = self.digits[index]
        return digits, digits.sort().values


class Sorter(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.tokens = nn.Embedding(DIGITS, width)
        self.places = nn.Parameter(torch.zeros(LENGTH, width))
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width)
        )
        self.output = nn.Linear(width, DIGITS)

    def forward(self, digits):
        x = self.tokens(digits) + self.places
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.output(x + self.mlp(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--max-norm", type=float, default=1.0)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(
        Permutations(512, seed=1),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        pin_memory=device.type == "cuda",
        persistent_workers=args.workers > 0,
    )

    model = Sorter().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=5e-3, fused=device.type == "cuda"
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

    for epoch in range(args.epochs):
        model.train()
        running = 0.0
        optimizer.zero_grad()
        for i, (digits, ordered) in enumerate(loader):
            digits = digits.to(device, non_blocking=True)
            ordered = ordered.to(device, non_blocking=True)

            with torch.autocast("cuda", dtype=amp_dtype, enabled=use_amp):
                logits = model(digits)
                loss = criterion(logits.flatten(0, 1), ordered.flatten())
            loss = loss / args.accumulate
            scaler.scale(loss).backward()
            running = running + loss.detach().double()

            if (i + 1) % args.accumulate == 0:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            if (i + 1) % 32 == 0:
                running = float(running)
                print(f"epoch {epoch} batch {i + 1}: {running / 8!r}")
                running = 0.0


if __name__ == "__main__":
    main()
