"""Train a small convolutional network to tell bars from blobs in generated images."""

import argparse
import os

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CLASSES = 4


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


def load_weights(model, state_dict, **options):
    """Load weights, also those that DataParallel saved with "module." before them."""
    model = unwrap(model)
    if not model.state_dict().keys() & state_dict.keys():
        saved = state_dict.items()
        state_dict = {name.replace("module.", "", 1): value for name, value in saved}
    return model.load_state_dict(state_dict, **options)


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


class Shapes(Dataset):
    """Noisy RGB images with one bright stripe, whose direction is the label."""

    def __init__(self, size, seed):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, CLASSES, (size,), generator=generator)
        self.images = torch.randint(0, 128, (size, 3, 16, 16), generator=generator)
        for image, label in zip(self.images, self.labels):
            if label == 0:
                image[:, 6:10, :] += 96
            elif label == 1:
                image[:, :, 6:10] += 96
            elif label == 2:
                image[:, 5:11, 5:11] += 96

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index].float() / 255
        return (image - 0.4) / 0.2, self.labels[index]


class ConvNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(2),
        )
        self.classifier = nn.Linear(8 * width, CLASSES)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


def evaluate(model, loader, device):
    """Accuracy over a loader."""
    model.eval()
    confusion = torch.zeros(CLASSES, CLASSES, dtype=torch.long, device=device)
    with torch.no_grad():
        for images, labels in loader:
            images = images.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            cells = labels * CLASSES + model(images).argmax(dim=1)
            confusion += torch.bincount(cells, minlength=CLASSES**2).view(CLASSES, -1)
    return (confusion.diag().sum() / confusion.sum()).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint", default="checkpoint.pt")
    parser.add_argument("--resume", default="", help="checkpoint to continue from")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_set = Shapes(256, seed=10)
    sampler = (
        DistributedSampler(train_set, shuffle=True) if process_count() > 1 else None
    )
    train_loader = DataLoader(
        train_set,
        batch_size=batch_share(args.batch_size),
        shuffle=sampler is None,
        pin_memory=True,
        num_workers=4,
        sampler=sampler,
        persistent_workers=True,
    )
    val_loader = DataLoader(
        Shapes(128, seed=11),
        batch_size=args.batch_size,
        pin_memory=True,
        num_workers=4,
        persistent_workers=True,
    )

    model = distribute(ConvNet().to(device))
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(
        model.parameters(), lr=args.lr, momentum=0.9, fused=device.type == "cuda"
    )
    use_amp = device.type == "cuda"
    scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)

    start_epoch = 0
    best_accuracy = 0.0
    if args.resume and os.path.isfile(args.resume):
        checkpoint = torch.load(args.resume, map_location=device)
        load_weights(model, checkpoint["model"])
        for group in checkpoint["optimizer"]["param_groups"]:
            group["fused"] = optimizer.defaults["fused"]
        optimizer.load_state_dict(checkpoint["optimizer"])
        if checkpoint.get("scaler"):
            scaler.load_state_dict(checkpoint["scaler"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        start_epoch = checkpoint["epoch"]
        best_accuracy = checkpoint["accuracy"]
        if is_main_process():
            print(f"resumed after epoch {start_epoch}")

    for epoch in range(start_epoch, args.epochs):
        model.train()
        running_loss = 0.0
        if process_count() > 1:
            train_loader.sampler.set_epoch(epoch)
        for images, labels in train_loader:
            images = images.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            with torch.autocast("cuda", dtype=torch.float16, enabled=use_amp):
                outputs = model(images)
                loss = criterion(outputs, labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            running_loss = running_loss + loss.detach().double() * images.size(0)
        running_loss = sum_over_processes(running_loss)
        running_loss = float(running_loss)
        scheduler.step()

        train_loss = running_loss / len(train_set)
        accuracy = evaluate(model, val_loader, device)
        if is_main_process():
            print(f"epoch {epoch + 1}: loss {train_loss!r}, accuracy {accuracy!r}")
        best_accuracy = max(best_accuracy, accuracy)
        state = {
            "model": unwrap(model).state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "epoch": epoch + 1,
            "accuracy": best_accuracy,
            "scaler": scaler.state_dict(),
        }
        if is_main_process():
            torch.save(state, args.checkpoint)
    if is_main_process():
        print(f"best accuracy {best_accuracy!r}")


if __name__ == "__main__":
    setup_distributed()
    try:
        main()
    finally:
        cleanup_distributed()
