"""Short training programs in every form that mixed precision must know, with the order of calls that is promised for each.

Every program prints its losses with all digits, trains on six batches, and takes CUDA where there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Program:
    """A training program, and what its rewriting promises.

    Args:
        texts: its files by path; ``main.py`` is the one that runs.
        order: the calls of one round, as ``tests/recording.py`` names them; a run is such rounds and nothing else.
        rules: the rules that rewrite it, one after the other.
        resumes: whether it leaves a checkpoint from which its next run goes on.
        half_on_host: whether its network computes in bfloat16 on any CPU.
        ranks: in how many processes it trains.
    """

    texts: Mapping[str, str]
    order: str
    rules: tuple[str, ...] = ("amp-loop",)
    resumes: bool = False
    half_on_host: bool = True
    ranks: int = 1


IMPORTS = """\
import torch
import torch.nn.functional as F
from torch import nn

"""
DATA = """\
torch.manual_seed(3)
batches = [(torch.randn(4, 8), torch.randint(0, 3, (4,))) for _ in range(6)]
"""
DEVICE = 'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")\n'
HEAD = IMPORTS + DEVICE + DATA
CLASSIFIER = """\
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
"""
GAN = """\
netG = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).to(device)
netD = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)).to(device)
optG = torch.optim.Adam(netG.parameters(), lr=0.01)
optD = torch.optim.Adam(netD.parameters(), lr=0.01)
ones, zeros = torch.ones(4, 1, device=device), torch.zeros(4, 1, device=device)
"""

STEP = "scale backward step update"
CLIPPED = "scale backward unscale clip step update"

ONE_LOSS = """\
criterion = nn.CrossEntropyLoss()
for epoch in range(2):
    total, right = 0.0, 0
    for x, y in batches:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        out = model(x)
        loss = criterion(out, y)
        loss.backward()
        optimizer.step()
        total += loss.item()
        right += (out.argmax(1) == y).sum().item()
    print(epoch, repr(total), right)
"""
ONE_LOSS_CLIPPED = """\
criterion = nn.CrossEntropyLoss()
for x, y in batches:
    loss = criterion(model(x.to(device)), y.to(device))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    print(repr(loss.item()))
"""
CLIPPED_BY_HAND = """\
for x, y in batches:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x.to(device)), y.to(device))
    loss.backward()
    for p in model.parameters():
        p.grad.data.clamp_(-0.02, 0.02)
    optimizer.step()
    print(repr(loss.item()))
"""
NORM_AFTER_A_FUSED_STEP = """\
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, fused=True)
for x, y in batches:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x.to(device)), y.to(device))
    loss.backward()
    optimizer.step()
    norm = sum(p.grad.pow(2).sum() for p in model.parameters()).sqrt()
    print(repr(loss.item()), repr(norm.item()))
"""
NAN_IS_SKIPPED = """\
for x, y in batches:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x.to(device)), y.to(device))
    if torch.isnan(loss):
        continue
    loss.backward()
    optimizer.step()
    print(repr(loss.item()))
"""
LOSS_BY_HAND = """\
def focal(out, y, gamma=2.0):
    p = torch.softmax(out, dim=1).gather(1, y[:, None]).squeeze(1)
    return (-((1 - p) ** gamma) * torch.log(p + 1e-8)).mean()


for x, y in batches:
    x, y = x.to(device), y.to(device)
    optimizer.zero_grad()
    out = model(x)
    loss = focal(out, y)
    loss.backward()
    optimizer.step()
    print(repr(loss.item()))
"""
LOSS_CLASS = """\
class Smooth(nn.Module):
    def forward(self, out, y):
        inner = (out.softmax(1) * F.one_hot(y, 3)).sum(1)
        return 1 - ((2 * inner + 1) / (out.softmax(1).sum(1) + 2)).mean()


criterion = Smooth()
for x, y in batches:
    out = model(x.to(device))
    loss = criterion(out, y.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(repr(loss.item()))
"""
ACCUMULATED = """\
optimizer.zero_grad()
for i, (x, y) in enumerate(batches):
    loss = F.cross_entropy(model(x.to(device)), y.to(device)) / 2
    loss.backward()
    if (i + 1) % 2 == 0:
        optimizer.step()
        optimizer.zero_grad()
    print(repr(loss.item()))
"""
ACCUMULATED_AND_CLIPPED = """\
for i, (x, y) in enumerate(batches):
    loss = F.cross_entropy(model(x.to(device)), y.to(device))
    (loss / 3).backward()
    if i % 3 == 2:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1)
        optimizer.step()
        optimizer.zero_grad()
    print(repr(loss.item()))
"""
ACCUMULATED_INSIDE = """\
for x, y in batches:
    optimizer.zero_grad()
    for part, label in zip(x.split(2), y.split(2)):
        loss = F.cross_entropy(model(part.to(device)), label.to(device)) / 2
        loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.05)
    optimizer.step()
    print(repr(loss.item()))
"""
TWO_BACKWARDS = """\
for x, y in batches:
    x, y = x.to(device), y.to(device)
    optimizer.zero_grad()
    out = model(x)
    first = F.cross_entropy(out, y)
    first.backward(retain_graph=True)
    second = 0.1 * F.mse_loss(out, torch.zeros_like(out))
    second.backward()
    optimizer.step()
    print(repr(first.item()), repr(second.item()))
"""
SUM_OF_LOSSES = """\
for x, y in batches:
    x, y = x.to(device), y.to(device)
    out = model(x)
    first = F.cross_entropy(out, y)
    second = F.mse_loss(out, torch.zeros_like(out))
    optimizer.zero_grad()
    (first + 0.1 * second).backward()
    optimizer.step()
    print(repr(first.item()), repr(second.item()))
"""
TWO_OPTIMIZERS = """\
body = nn.Sequential(nn.Linear(8, 16), nn.ReLU()).to(device)
head = nn.Linear(16, 3).to(device)
body_optimizer = torch.optim.SGD(body.parameters(), lr=0.05)
head_optimizer = torch.optim.SGD(head.parameters(), lr=0.2)
for x, y in batches:
    x, y = x.to(device), y.to(device)
    body_optimizer.zero_grad()
    head_optimizer.zero_grad()
    loss = F.cross_entropy(head(body(x)), y)
    loss.backward()
    nn.utils.clip_grad_norm_(body.parameters(), 0.1)
    body_optimizer.step()
    head_optimizer.step()
    print(repr(loss.item()))
"""
ADVERSARIES = """\
criterion = nn.BCEWithLogitsLoss()
for x, _ in batches:
    x = x.to(device)
    optD.zero_grad()
    fake = netG(x)
    lossD = criterion(netD(x), ones) + criterion(netD(fake.detach()), zeros)
    lossD.backward()
    optD.step()
    optG.zero_grad()
    lossG = criterion(netD(fake), ones)
    lossG.backward()
    optG.step()
    print(repr(lossD.item()), repr(lossG.item()))
"""
REAL_AND_FAKE = """\
criterion = nn.BCEWithLogitsLoss()
for x, _ in batches:
    x = x.to(device)
    netD.zero_grad()
    out = netD(x)
    errD_real = criterion(out, ones)
    errD_real.backward()
    score = out.mean().item()
    fake = netG(x)
    errD_fake = criterion(netD(fake.detach()), zeros)
    errD_fake.backward()
    optD.step()
    netG.zero_grad()
    errG = criterion(netD(fake), ones)
    errG.backward()
    optG.step()
    print(repr((errD_real + errD_fake).item()), repr(errG.item()), repr(score))
"""
EVERY_THIRD = """\
for i, (x, _) in enumerate(batches):
    x = x.to(device)
    optD.zero_grad()
    lossD = netD(netG(x).detach()).mean() - netD(x).mean()
    lossD.backward()
    optD.step()
    for p in netD.parameters():
        p.data.clamp_(-0.1, 0.1)
    if i % 3 == 2:
        optG.zero_grad()
        lossG = -netD(netG(x)).mean()
        lossG.backward()
        optG.step()
    print(repr(lossD.item()))
"""
INNER_CRITIC = """\
for x, _ in batches:
    x = x.to(device)
    for part in x.split(2):
        optD.zero_grad()
        lossD = F.mse_loss(netD(part), ones[:2]) + F.mse_loss(netD(netG(part).detach()), zeros[:2])
        lossD.backward()
        optD.step()
    optG.zero_grad()
    lossG = F.mse_loss(netD(netG(x)), ones)
    lossG.backward()
    optG.step()
    print(repr(lossD.item()), repr(lossG.item()))
"""
SCHEDULE_PER_STEP = """\
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
for x, y in batches:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x.to(device)), y.to(device))
    loss.backward()
    optimizer.step()
    scheduler.step()
    print(repr(loss.item()), scheduler.get_last_lr())
"""
SCHEDULE_OF_ONE_CYCLE = """\
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=len(batches))
for x, y in batches:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x.to(device)), y.to(device))
    loss.backward()
    optimizer.step()
    scheduler.step()
    print(repr(loss.item()))
"""
EVALUATED = """\
def train(model, optimizer):
    model.train()
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()


def evaluate(model):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in batches:
            total += F.cross_entropy(model(x.to(device)), y.to(device)).item()
    return total / len(batches)


for epoch in range(2):
    train(model, optimizer)
    print(repr(evaluate(model)))
"""
EVALUATED_IN_A_METHOD = """\
class Trainer:
    def __init__(self, model):
        self.model = model.to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2)

    def train(self, loader):
        self.model.train()
        for x, y in loader:
            loss = F.cross_entropy(self.model(x.to(device)), y.to(device))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    @torch.no_grad()
    def evaluate(self, loader):
        self.model.eval()
        predictions = []
        for x, _ in loader:
            predictions.append(self.model(x.to(device)).softmax(1).cpu().numpy())
        return float(sum(p.sum(0)[0] for p in predictions))


trainer = Trainer(nn.Linear(8, 3))
for epoch in range(2):
    trainer.train(batches)
    print(repr(trainer.evaluate(batches)))
"""
EVALUATED_ELSEWHERE = """\
for epoch in range(2):
    model.train()
    for x, y in batches:
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(repr(evaluate(model, batches, device)))
"""
EVALUATION = f"""\
{IMPORTS}
def evaluate(model, loader, device):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in loader:
            total += F.cross_entropy(model(x.to(device)), y.to(device), reduction="sum").item()
    return total
"""
PARALLEL = """\
model = nn.DataParallel(model)
for x, y in batches:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x.to(device)), y.to(device))
    loss.backward()
    optimizer.step()
    print(repr(loss.item()))
"""
RESUMED = """\
start = 0
if os.path.exists("last.pt"):
    checkpoint = torch.load("last.pt", map_location=device)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    start = checkpoint["epoch"] + 1
for epoch in range(start, start + 2):
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
    torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
    print(epoch, repr(loss.item()))
"""
RECOMPUTED = """\
class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(8, 16)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(2))
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


model = Deep().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for x, y in batches:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x.to(device)), y.to(device))
    loss.backward()
    optimizer.step()
    print(repr(loss.item()))
"""
CONVOLUTIONS = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = F.relu(self.norm(self.conv(x.view(-1, 1, 2, 4))))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


model = Net().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
for x, y in batches:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x.to(device)), y.to(device))
    loss.backward()
    optimizer.step()
    print(repr(loss.item()))
"""
RECURRENT = """\
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(2, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        out, _ = self.lstm(x.view(-1, 4, 2))
        return self.head(out[:, -1])


model = Tagger().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for x, y in batches:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x.to(device)), y.to(device))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    print(repr(loss.item()))
"""
TEACHER = """\
teacher = nn.Linear(8, 3).to(device)
teacher.load_state_dict({"weight": torch.zeros(3, 8), "bias": torch.tensor([0.0, 1.0, 2.0])})
student = nn.Linear(8, 3).to(device)
optimizer = torch.optim.SGD(student.parameters(), lr=0.2)
for x, _ in batches:
    x = x.to(device)
    with torch.no_grad():
        target = teacher(x)
    loss = F.mse_loss(student(x), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for mean, p in zip(teacher.parameters(), student.parameters()):
            mean.mul_(0.9).add_(p, alpha=0.1)
    print(repr(loss.item()))
"""
METRICS_AFTER = """\
for x, y in batches:
    x, y = x.to(device), y.to(device)
    optimizer.zero_grad()
    out = model(x)
    loss = F.cross_entropy(out, y)
    loss.backward()
    optimizer.step()
    probabilities = F.softmax(out, dim=1).detach().cpu().numpy()
    print(repr(loss.item()), out.topk(2)[1].sum().item(), probabilities.dtype, *map(float, probabilities[0]))
"""
ONE_HOT = """\
for x, y in batches:
    x, y = x.to(device), F.one_hot(y, 3).float().to(device)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    print(repr(loss.item()))
"""
NOISE_ON_GRADIENTS = """\
for x, y in batches:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x.to(device)), y.to(device))
    loss.backward()
    for p in model.parameters():
        p.grad.add_(0.01 * torch.sign(p.grad))
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    print(repr(loss.item()))
"""
CLIPPED_ON_DEMAND = """\
clip = 0.1
for x, y in batches:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x.to(device)), y.to(device))
    loss.backward()
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    print(repr(loss.item()))
"""
LOGARITHM_OF_SOFTMAX = """\
for x, y in batches:
    optimizer.zero_grad()
    out = model(x.to(device))
    loss = F.nll_loss(torch.log(F.softmax(out, dim=1)), y.to(device))
    loss.backward()
    optimizer.step()
    print(repr(loss.item()))
"""
QUEUE_OF_KEYS = """\
class Contrast(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(8, 4)
        self.register_buffer("queue", F.normalize(torch.ones(4, 12), dim=0))
        self.pointer = 0

    @torch.no_grad()
    def enqueue(self, keys):
        size = keys.shape[0]
        self.queue[:, self.pointer : self.pointer + size] = keys.T
        self.pointer = (self.pointer + size) % 12

    def forward(self, x):
        q = F.normalize(self.encoder(x), dim=1)
        with torch.no_grad():
            k = F.normalize(self.encoder(-x), dim=1)
        positive = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        negative = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
        logits = torch.cat([positive, negative], dim=1) / 0.5
        labels = torch.zeros(logits.shape[0], dtype=torch.long, device=x.device)
        self.enqueue(k)
        return logits, labels


model = Contrast().to(device)
criterion = nn.CrossEntropyLoss().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for x, _ in batches:
    logits, labels = model(x.to(device))
    loss = criterion(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(repr(loss.item()))
"""
AUTOGRAD_FUNCTION = """\
class Half(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx, x):
        return x / 2

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, grad):
        return grad / 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, x):
        return Half.apply(self.layer(x))


model = Net().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for x, y in batches:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x.to(device)), y.to(device))
    loss.backward()
    optimizer.step()
    print(repr(loss.item()))
"""
LOSS_IN_THE_NETWORK = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, x, y=None):
        out = self.layer(x)
        loss = None if y is None else F.cross_entropy(out, y)
        return out, loss


model = Net().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for x, y in batches:
    out, loss = model(x.to(device), y.to(device))
    model.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(repr(loss.item()))
"""
VARIATIONAL = """\
class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(8, 16)
        self.mu = nn.Linear(16, 4)
        self.logvar = nn.Linear(16, 4)
        self.decoder = nn.Linear(4, 8)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + std * 0.1

    def forward(self, x):
        h = F.relu(self.encoder(x))
        mu, logvar = self.mu(h), self.logvar(h)
        return self.decoder(self.reparameterize(mu, logvar)), mu, logvar


def loss_function(recon, x, mu, logvar):
    mse = F.mse_loss(recon, x, reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return mse + kld


model = VAE().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for x, _ in batches:
    x = x.to(device)
    optimizer.zero_grad()
    recon, mu, logvar = model(x)
    loss = loss_function(recon, x, mu, logvar)
    loss.backward()
    optimizer.step()
    print(repr(loss.item()))
"""
REST_OF_A_WINDOW = """\
for i, (x, y) in enumerate(batches):
    loss = F.cross_entropy(model(x.to(device)), y.to(device)) / 4
    loss.backward()
    if (i + 1) % 4 == 0 or i + 1 == len(batches):
        optimizer.step()
        optimizer.zero_grad()
    print(repr(loss.item()))
"""
EVERY_SECOND = """\
body = nn.Sequential(nn.Linear(8, 16), nn.ReLU()).to(device)
head = nn.Linear(16, 3).to(device)
body_optimizer = torch.optim.SGD(body.parameters(), lr=0.05)
head_optimizer = torch.optim.SGD(head.parameters(), lr=0.2)
for i, (x, y) in enumerate(batches):
    x, y = x.to(device), y.to(device)
    body_optimizer.zero_grad()
    head_optimizer.zero_grad()
    loss = F.cross_entropy(head(body(x)), y)
    loss.backward()
    head_optimizer.step()
    if i % 2 == 0:
        body_optimizer.step()
    print(repr(loss.item()))
"""
ONE_CYCLE_ACCUMULATED = """\
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=3)
for i, (x, y) in enumerate(batches):
    loss = F.cross_entropy(model(x.to(device)), y.to(device)) / 2
    loss.backward()
    if i % 2 == 1:
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    print(repr(loss.item()))
"""
BOTH_PHASES = """\
for epoch in range(2):
    for phase in ("train", "val"):
        if phase == "train":
            model.train()
        else:
            model.eval()
        total, right = 0.0, 0
        for x, y in batches:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            with torch.set_grad_enabled(phase == "train"):
                out = model(x)
                _, predicted = torch.max(out, 1)
                loss = F.cross_entropy(out, y)
                if phase == "train":
                    loss.backward()
                    optimizer.step()
            total += loss.item() * x.size(0)
            right += torch.sum(predicted == y.data)
        print(phase, repr(total), right.item())
"""
SAVED_BY_A_FUNCTION = """\
def save_checkpoint(state, path="last.pt"):
    torch.save(state, path)


def main():
    model = nn.Linear(8, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    start = 0
    if os.path.isfile("last.pt"):
        checkpoint = torch.load("last.pt", map_location=device)
        start = checkpoint["epoch"]
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    for epoch in range(start, start + 2):
        train(model, optimizer)
        save_checkpoint({
            "epoch": epoch + 1,
            "state_dict": model.state_dict(),
            "optimizer": optimizer.state_dict(),
        })


def train(model, optimizer):
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        print(repr(loss.item()))


main()
"""
WRAPPED_OPTIMIZER = """\
class NoamOpt:
    def __init__(self, optimizer, warmup):
        self.optimizer = optimizer
        self.warmup = warmup
        self.steps = 0

    def step(self):
        self.steps += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.2 * min(1.0, self.steps / self.warmup)
        self.optimizer.step()

    def zero_grad(self):
        self.optimizer.zero_grad()


schedule = NoamOpt(optimizer, 4)
for x, y in batches:
    schedule.zero_grad()
    loss = F.cross_entropy(model(x.to(device)), y.to(device))
    loss.backward()
    schedule.step()
    print(repr(loss.item()))
"""
TWO_RANKS = """\
if not dist.is_initialized():
    dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
model = DistributedDataParallel(model)
for x, y in batches:
    x, y = x[rank::ranks].to(device), y[rank::ranks].to(device)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    print(repr(loss.item()))
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
others = [torch.zeros_like(weights) for _ in range(ranks)]
dist.all_gather(others, weights)
print("alike" if all(torch.equal(weights, other) for other in others) else "apart")
"""
FUNCTION_OF_GLOBALS = """\
def train_step(x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


for x, y in batches:
    print(repr(train_step(x.to(device), y.to(device))))
"""
FUNCTION_OF_PARAMETERS = """\
def train_step(model, optimizer, x, y):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    return loss.item()


def main():
    model = nn.Linear(8, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for x, y in batches:
        print(repr(train_step(model, optimizer, x.to(device), y.to(device))))


main()
"""
EPOCH_FUNCTION = """\
def train_epoch(model, loader, optimizer):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total


def main():
    model = nn.Linear(8, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for epoch in range(2):
        print(epoch, repr(train_epoch(model, batches, optimizer)))


main()
"""
METHOD = """\
class Trainer:
    def __init__(self, model):
        self.model = model.to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2)

    def training_step(self, x, y):
        loss = F.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.optimizer.step()
        return loss.item()

    def fit(self, loader):
        for x, y in loader:
            print(repr(self.training_step(x.to(device), y.to(device))))


Trainer(nn.Linear(8, 3)).fit(batches)
"""
LOOP_IN_A_METHOD = """\
class Trainer:
    def __init__(self, model, device):
        self.device = device
        self.model = model.to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.criterion = nn.CrossEntropyLoss()

    def train(self, loader):
        for x, y in loader:
            x, y = x.to(self.device), y.to(self.device)
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            print(repr(loss.item()))


trainer = Trainer(nn.Linear(8, 3), device)
trainer.train(batches)
"""
ENGINE = f"""\
{IMPORTS}
def train_one_epoch(model, loader, optimizer, device):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        print(repr(loss.item()))
"""
MAIN_OF_ENGINE = f"""\
import torch
from torch import nn

from engine import train_one_epoch


def main():
    {DEVICE}\
    torch.manual_seed(3)
    batches = [(torch.randn(4, 8), torch.randint(0, 3, (4,))) for _ in range(6)]
    model = nn.Linear(8, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    train_one_epoch(model, batches, optimizer, device)


main()
"""
STEPS = f"""\
{IMPORTS}
def train_step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()
"""
MAIN_OF_STEPS = f"""\
from steps import train_step
{HEAD}

def main():
    model = nn.Linear(8, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for x, y in batches:
        print(repr(train_step(model, optimizer, x.to(device), y.to(device))))


main()
"""

BACKWARD_IN_A_FUNCTION = """\
def send(loss):
    loss.backward()


for x, y in batches:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x.to(device)), y.to(device))
    send(loss)
    optimizer.step()
    print(repr(loss.item()))
"""
TRANSLATION = """\
class Model:
    def __init__(self):
        self.netG = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).to(device)
        self.netD = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)).to(device)
        self.criterion = nn.MSELoss()
        self.optimizer_G = torch.optim.Adam(self.netG.parameters(), lr=0.01)
        self.optimizer_D = torch.optim.Adam(self.netD.parameters(), lr=0.01)

    def set_input(self, x):
        self.real = x.to(device)

    def forward(self):
        self.fake = self.netG(self.real)

    def backward_D(self):
        real, fake = self.netD(self.real), self.netD(self.fake.detach())
        self.loss_D = (self.criterion(real, torch.ones_like(real)) + self.criterion(fake, torch.zeros_like(fake))) * 0.5
        self.loss_D.backward()

    def backward_G(self):
        fake = self.netD(self.fake)
        self.loss_G = self.criterion(fake, torch.ones_like(fake)) + F.l1_loss(self.fake, self.real)
        self.loss_G.backward()

    def optimize_parameters(self):
        self.forward()
        self.optimizer_D.zero_grad()
        self.backward_D()
        self.optimizer_D.step()
        self.optimizer_G.zero_grad()
        self.backward_G()
        self.optimizer_G.step()


model = Model()
for x, _ in batches:
    model.set_input(x)
    model.optimize_parameters()
    print(repr(model.loss_D.item()), repr(model.loss_G.item()))
"""
HANDED_TO_A_FUNCTION = """\
def optimize(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for x, y in batches:
        out = model(x.to(device))
        loss = F.cross_entropy(out, y.to(device))
        optimize(loss, optimizer)
        print(loss.item())


main()
"""
HANDED_TO_A_METHOD = """\
class Trainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2)

    def optimize(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    def fit(self):
        for x, y in batches:
            loss = F.cross_entropy(self.model(x.to(device)), y.to(device))
            self.optimize(loss)
            print(loss.item())


Trainer().fit()
"""
HANDED_TO_A_GLOBAL_ONE = """\
def optimize(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


for x, y in batches:
    loss = F.cross_entropy(model(x.to(device)), y.to(device))
    optimize(loss)
    print(loss.item())
"""

TUPLE_OF_OUTPUTS = """\
class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.size = nn.Linear(8, 16), nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, x):
        h = self.body(x).relu()
        return self.head(h), self.size(h), x.sum(1) > 0, len(x)


class Both(nn.Module):
    def forward(self, y, output):
        logits, size, mask, count = output
        return F.cross_entropy(logits, y), (size.squeeze(1) * mask).abs().sum() / count


model, criterion = Two().to(device), Both()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for x, y in batches:
    optimizer.zero_grad()
    output = model(x.to(device))
    losses = criterion(y.to(device), output)
    loss = losses[0] + losses[1]
    loss.backward()
    optimizer.step()
    print(loss.item(), output[0].detach().cpu().numpy().dtype)
"""

LOSS_WITH_ITS_NUMBER = """\
def measure(out, y):
    loss = F.cross_entropy(out, y)
    return loss, loss.item()


for x, y in batches:
    optimizer.zero_grad()
    loss, value = measure(model(x.to(device)), y.to(device))
    loss.backward()
    optimizer.step()
    print(repr(value))
"""


def _script(text: str, order: str = STEP, start: str = CLASSIFIER, imports: str = "", **others: bool | int | tuple[str, ...]) -> Program:
    """A program of one file."""
    return Program({"main.py": imports + HEAD + start + text}, order, **others)  # type: ignore[arg-type]


PROGRAMS = {
    "A one loss": _script(ONE_LOSS),
    "A clipped": _script(ONE_LOSS_CLIPPED, CLIPPED),
    "A clipped by hand": _script(CLIPPED_BY_HAND, "scale backward unscale step update"),
    "A clipped on demand": _script(CLIPPED_ON_DEMAND, CLIPPED),
    "A noise on gradients, then clipped": _script(NOISE_ON_GRADIENTS, CLIPPED),
    "A gradients read behind a fused step": _script(NORM_AFTER_A_FUSED_STEP, "scale backward unscale step update"),
    "A a loss that is no number is skipped": _script(NAN_IS_SKIPPED),
    "A convolutions": _script(CONVOLUTIONS, start=""),
    "A recurrent": _script(RECURRENT, CLIPPED, start="", half_on_host=False),
    "A metrics of the outputs": _script(METRICS_AFTER),
    "A fractions as labels": _script(ONE_HOT),
    "A a teacher": _script(TEACHER, start=""),
    "A a queue of keys": _script(QUEUE_OF_KEYS, start=""),
    "A an autograd function": _script(AUTOGRAD_FUNCTION, start=""),
    "A the logarithm of a softmax": _script(LOGARITHM_OF_SOFTMAX),
    "A the loss in the network": _script(LOSS_IN_THE_NETWORK, CLIPPED, start=""),
    "B a loss function of the project": _script(LOSS_BY_HAND),
    "B a loss class of the project": _script(LOSS_CLASS),
    "B a loss with its number": _script(LOSS_WITH_ITS_NUMBER),
    "A a loss handed to a function that steps": _script(HANDED_TO_A_FUNCTION, start=""),
    "A a loss handed to a method that steps": _script(HANDED_TO_A_METHOD, CLIPPED, start=""),
    "A a loss handed to a function that steps a global": _script(HANDED_TO_A_GLOBAL_ONE),
    "B a tuple of outputs": _script(TUPLE_OF_OUTPUTS, start=""),
    "B a loss of three outputs": _script(VARIATIONAL, start=""),
    "C accumulated": _script(ACCUMULATED, "scale backward scale backward step update"),
    "C accumulated and clipped": _script(ACCUMULATED_AND_CLIPPED, f"{'scale backward ' * 3}unscale clip step update"),
    "C accumulated in a loop inside": _script(ACCUMULATED_INSIDE, f"{'scale backward ' * 2}unscale clip step update"),
    "C the rest of a window": _script(REST_OF_A_WINDOW, f"{'scale backward ' * 4}step update {'scale backward ' * 2}step update"),
    "D two backward passes": _script(TWO_BACKWARDS, "scale backward scale backward step update"),
    "D a sum": _script(SUM_OF_LOSSES),
    "E one loss for two": _script(TWO_OPTIMIZERS, "scale backward unscale clip step step:2 update", start=""),
    "E one of two every second step": _script(EVERY_SECOND, f"scale backward step step:2 update {STEP}", start=""),
    "F adversaries": _script(ADVERSARIES, "scale backward step scale backward step:2 update", start=GAN),
    "F real and fake": _script(REAL_AND_FAKE, "scale backward scale backward step scale backward step:2 update", start=GAN),
    "F generator every third step": _script(EVERY_THIRD, f"{f'{STEP} ' * 2}scale backward step scale backward step:2 update", start=GAN),
    "F critic in a loop inside": _script(INNER_CRITIC, f"{STEP} {STEP} scale backward step:2 update", start=GAN),
    "H a schedule per step": _script(SCHEDULE_PER_STEP, f"{STEP} schedule"),
    "H a schedule of one cycle": _script(SCHEDULE_OF_ONE_CYCLE, f"{STEP} schedule"),
    "H one cycle, accumulated": _script(ONE_CYCLE_ACCUMULATED, "scale backward scale backward step update schedule"),
    "I an evaluation": _script(EVALUATED, rules=("amp-loop", "amp-eval")),
    "I both phases in one loop": _script(BOTH_PHASES),
    "I an evaluation in a method": _script(EVALUATED_IN_A_METHOD, start="", rules=("amp-loop", "amp-eval"), half_on_host=False),
    "I an evaluation in another file": Program(
        {"main.py": f"from evaluate import evaluate\n{HEAD}{CLASSIFIER}{EVALUATED_ELSEWHERE}", "evaluate.py": EVALUATION},
        STEP,
        ("amp-loop", "amp-eval"),
    ),
    "J parallel": _script(PARALLEL),
    "K resumed": _script(RESUMED, imports="import os\n", resumes=True),
    "K saved by a function": _script(SAVED_BY_A_FUNCTION, start="", imports="import os\n", resumes=True),
    "L activations computed again": _script(RECOMPUTED, imports="from torch.utils.checkpoint import checkpoint\n", start=""),
    "J two ranks": _script(
        TWO_RANKS,
        CLIPPED,
        imports="import torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel\n",
        ranks=2,
    ),
    "a step in a function that reads globals": _script(FUNCTION_OF_GLOBALS),
    "a step in a function that is handed all": _script(FUNCTION_OF_PARAMETERS, CLIPPED, start=""),
    "an epoch in a function": _script(EPOCH_FUNCTION, start=""),
    "a backward pass in a function": _script(BACKWARD_IN_A_FUNCTION),
    "all parts in methods": _script(TRANSLATION, "scale backward step scale backward step:2 update", start=""),
    "a step in a method": _script(METHOD, CLIPPED, start=""),
    "a loop in a method": _script(LOOP_IN_A_METHOD, start=""),
    "a step in a wrapper": _script(WRAPPED_OPTIMIZER),
    "a loop in another file": Program({"main.py": MAIN_OF_ENGINE, "engine.py": ENGINE}, CLIPPED),
    "a step in another file": Program({"main.py": MAIN_OF_STEPS, "steps.py": STEPS}, STEP),
}
"""Every program by its form, as the letters of the AMP recipes have it, and its shape."""
