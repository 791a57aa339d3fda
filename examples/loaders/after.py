"""Classify generated sentences of different lengths with a bag of embeddings."""

import argparse
import os

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils import data

VOCABULARY = 200
TOPICS = 3


class Sentences(data.Dataset):
    """Word numbers, of which a topic prefers its own part of the vocabulary."""

    def __init__(self, size, seed):
        generator = torch.Generator().manual_seed(seed)
        self.topics = torch.randint(0, TOPICS, (size,), generator=generator).tolist()
        self.sentences = []
        for topic in self.topics:
            length = int(torch.randint(4, 20, (1,), generator=generator))
            words = torch.randint(1, VOCABULARY, (length,), generator=generator)
            words[: length // 2] = words[: length // 2] % 60 + 1 + 60 * topic
            self.sentences.append(words.tolist())

    def __len__(self):
        return len(self.sentences)

    def __getitem__(self, index):
        return torch.tensor(self.sentences[index]), self.topics[index]


def collate(samples):
    """Pad sentences with zeros to the longest of the batch."""
    words, topics = zip(*samples)
    return pad_sequence(words, batch_first=True), torch.tensor(topics)


class BagOfWords(nn.Module):
    def __init__(self, dimensions=32):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, dimensions, padding_idx=0)
        self.output = nn.Linear(dimensions, TOPICS)

    def forward(self, words):
        lengths = (words > 0).sum(dim=1, keepdim=True)
        return self.output(self.embedding(words).sum(dim=1) / lengths)


def run_epoch(model, loader, criterion, device, optimizer=None):
    """Mean loss over a loader; trains when there is an optimizer."""
    model.train(optimizer is not None)
    total, samples = 0.0, 0
    with torch.set_grad_enabled(optimizer is not None):
        for words, topics in loader:
            words = words.to(device, non_blocking=True)
            topics = topics.to(device, non_blocking=True)
            loss = criterion(model(words), topics)
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total = total + loss.detach().double() * len(topics)
            samples += len(topics)
        total = float(total)
    return total / samples


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    torch.manual_seed(3)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train_loader = data.DataLoader(
        Sentences(320, seed=4),
        batch_size=args.batch_size,
        shuffle=True,
        collate_fn=collate,
        num_workers=min(4 * torch.cuda.device_count(), os.cpu_count() or 1),
        pin_memory=True,
        persistent_workers=torch.cuda.device_count() > 0,
    )
    test_loader = data.DataLoader(
        Sentences(96, seed=5),
        batch_size=2 * args.batch_size,
        collate_fn=collate,
        pin_memory=True,
        num_workers=min(4 * torch.cuda.device_count(), os.cpu_count() or 1),
        persistent_workers=torch.cuda.device_count() > 0,
    )

    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")
    model = BagOfWords().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=0.02, fused=torch.device(device).type == "cuda"
    )
    for epoch in range(args.epochs):
        train_loss = run_epoch(model, train_loader, criterion, device, optimizer)
        test_loss = run_epoch(model, test_loader, criterion, device)
        print(f"{epoch}: train {train_loss!r} test {test_loss!r}")


if __name__ == "__main__":
    main()
