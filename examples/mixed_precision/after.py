"""Train an autoencoder on generated landscapes."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Landscapes(Dataset):
    """Sums of a few smooth waves on a small grid."""

    def __init__(self, size, seed, side=16):
        generator = torch.Generator().manual_seed(seed)
        axis = torch.linspace(0, 3.14, side)
        frequency = 4 * torch.rand(size, 2, 3, 1, generator=generator)
        waves = torch.sin(frequency * axis)
        self.maps = torch.einsum("nkx,nky->nxy", waves[:, 0], waves[:, 1]).unsqueeze(1)

    def __len__(self):
        return len(self.maps)

    def __getitem__(self, index):
        return self.maps[index]


class Autoencoder(nn.Module):
    def __init__(self, code=8):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Flatten(),
            nn.Linear(256, code),
        )
        self.decoder = nn.Sequential(
            nn.Linear(code, 256),
            nn.Unflatten(1, (16, 4, 4)),
            nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1),
            nn.GELU(),
            nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1),
        )

    def forward(self, x):
        return self.decoder(self.encoder(x))


def train(model, loader, optimizer, device, scaler):
    """One pass over the data; the mean loss."""
    model.train()
    total = 0.0
    use_amp = device.type == "cuda"
    amp_dtype = torch.bfloat16 if use_amp and not scaler.is_enabled() else torch.float16
    for maps in loader:
        maps = maps.to(device, non_blocking=True)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=amp_dtype, enabled=use_amp):
            restored = model(maps)
            loss = F.mse_loss(restored, maps)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        total = total + loss.detach().double() * maps.size(0)
    total = float(total)
    return total / len(loader.dataset)


@torch.no_grad()
def test(model, loader, device):
    model.eval()
    total = 0.0
    for maps in loader:
        maps = maps.to(device, non_blocking=True)
        total = total + F.mse_loss(model(maps), maps, reduction="sum").detach().double()
    total = float(total)
    return total / (len(loader.dataset) * 16 * 16)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    use_cuda = torch.cuda.is_available()
    device = torch.device("cuda" if use_cuda else "cpu")
    loader_args = {
        "num_workers": args.workers,
        "persistent_workers": args.workers > 0,
        "pin_memory": use_cuda,
    }
    train_loader = DataLoader(
        Landscapes(192, seed=1),
        batch_size=args.batch_size,
        shuffle=True,
        **loader_args,
    )
    test_loader = DataLoader(
        Landscapes(64, seed=2), batch_size=args.batch_size, **loader_args
    )

    model = Autoencoder().to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.lr, fused=device.type == "cuda"
    )
    scaler = torch.amp.GradScaler(
        "cuda",
        enabled=device.type == "cuda" and torch.cuda.get_device_capability()[0] < 8,
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    for epoch in range(args.epochs):
        train_loss = train(model, train_loader, optimizer, device, scaler=scaler)
        scheduler.step()
        test_loss = test(model, test_loader, device)
        print(f"epoch {epoch}: train {train_loss!r} test {test_loss!r}")


if __name__ == "__main__":
    main()
