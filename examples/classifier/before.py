"""Train a small convolutional network to tell bars from blobs in generated images."""

import argparse
import os

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, Dataset

CLASSES = 4


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
    confusion = torch.zeros(CLASSES, CLASSES, dtype=torch.long).to(device)
    with torch.no_grad():
        for images, labels in loader:
            images = images.to(device)
            labels = labels.to(device)
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
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    val_loader = DataLoader(Shapes(128, seed=11), batch_size=args.batch_size)

    model = nn.DataParallel(ConvNet()).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)

    start_epoch = 0
    best_accuracy = 0.0
    if args.resume and os.path.isfile(args.resume):
        checkpoint = torch.load(args.resume, map_location=device)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        start_epoch = checkpoint["epoch"]
        best_accuracy = checkpoint["accuracy"]
        print(f"resumed after epoch {start_epoch}")

    for epoch in range(start_epoch, args.epochs):
        model.train()
        running_loss = 0.0
        for images, labels in train_loader:
            images = images.to(device)
            labels = labels.to(device)
            outputs = model(images)
            loss = criterion(outputs, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running_loss += loss.item() * images.size(0)
        scheduler.step()

        train_loss = running_loss / len(train_set)
        accuracy = evaluate(model, val_loader, device)
        print(f"epoch {epoch + 1}: loss {train_loss!r}, accuracy {accuracy!r}")
        best_accuracy = max(best_accuracy, accuracy)
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "epoch": epoch + 1,
            "accuracy": best_accuracy,
        }
        torch.save(state, args.checkpoint)
    print(f"best accuracy {best_accuracy!r}")


if __name__ == "__main__":
    main()
