"""Teach a recurrent network to repeat a generated tune, and let it play."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

NOTES = 12


class Player(nn.Module):
    def __init__(self, device, hidden_size=32, layers=2):
        super().__init__()
        self.device = device
        self.hidden_size = hidden_size
        self.layers = layers
        self.embedding = nn.Embedding(NOTES, hidden_size)
        self.positions = nn.Embedding(64, hidden_size)
        self.rnn = nn.GRU(hidden_size, hidden_size, layers, batch_first=True)
        self.output = nn.Linear(hidden_size, NOTES)

    def initial_state(self, batch_size):
        return torch.zeros(
            self.layers, batch_size, self.hidden_size, device=self.device
        )

    def forward(self, notes, state, start=0):
        steps = torch.arange(start, start + notes.size(1), device=notes.device)
        features = self.embedding(notes) + self.positions(steps)
        features, state = self.rnn(features, state)
        return self.output(features), state


def make_tunes(count, length):
    """Broken chords: a root note, its third and its fifth, up and down."""
    root = torch.randint(0, NOTES, (count, 1))
    return (root + torch.tensor([0, 4, 7, 4]).repeat(length // 4)) % NOTES


def play(model, length, device):
    """Notes that the network picks one after the other."""
    state = model.initial_state(1)
    note = torch.full((1, 1), 0, dtype=torch.long, device=device)
    tune = []
    model.eval()
    with torch.no_grad():
        for position in range(length):
            logits, state = model(note, state, position)
            note = logits[:, -1].argmax(dim=1, keepdim=True)
            tune.append(note.item())
    return tune


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--noise", type=float, default=0.05)
    args = parser.parse_args()

    torch.manual_seed(7)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tunes = make_tunes(args.batch_size, 16).to(device)

    model = Player(device).to(device)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=0.01, fused=device.type == "cuda"
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
    weights = torch.ones(NOTES, device=device)
    for step in range(args.steps):
        state = model.initial_state(args.batch_size)
        state = state + args.noise * torch.randn(state.shape, device=device)
        with torch.autocast("cuda", dtype=amp_dtype, enabled=use_amp):
            logits, _ = model(tunes[:, :-1], state)
            loss = F.cross_entropy(
                logits.reshape(-1, NOTES), tunes[:, 1:].reshape(-1), weight=weights
            )
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 10 == 9:
            print(f"step {step + 1}: loss {loss.item()!r}")
    print("tune", play(model, 8, device))


if __name__ == "__main__":
    main()
