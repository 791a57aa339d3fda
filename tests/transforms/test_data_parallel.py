from __future__ import annotations

import ast
import os
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from tests.running import run_on_cpu, run_two_processes
from torchfix.registry import find
from torchfix.result import Outcome
from torchfix.testing import check_held, check_noop, check_transformed, run_transform

SCRIPT = """
import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Points(Dataset):
    def __init__(self, size, seed):
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.rand(size, 4, generator=generator)
        self.y = (self.x.sum(dim=1) > 2).long()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(4, 16)
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.hidden(x)))


def train(model, loader, criterion, optimizer, device, epoch):
    model.train()
    total = 0.0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        output = model(x)
        loss = criterion(output, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    correct = 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        correct += (model(x).argmax(dim=1) == y).sum().item()
    return correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--resume", default="")
    args = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_set = Points(64, 1)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(Points(31, 2), batch_size=args.batch_size)
    model = nn.DataParallel(Net()).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    start = 0
    if args.resume:
        checkpoint = torch.load(args.resume)
        model.load_state_dict(checkpoint["model"])
        start = checkpoint["epoch"]
    for epoch in range(start, args.epochs):
        loss = train(model, train_loader, criterion, optimizer, device, epoch)
        accuracy = evaluate(model, test_loader, device)
        print(epoch, repr(loss), repr(accuracy))
        torch.save({"model": model.state_dict(), "epoch": epoch + 1}, "last.pt")


if __name__ == "__main__":
    main()
"""

WRAP = "model = nn.DataParallel(Net()).to(device)"
TRAIN_LOADER = "train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)"
STEP = "        optimizer.step()\n"
EPOCH = "        print(epoch, repr(loss), repr(accuracy))\n"
GUARD = 'if __name__ == "__main__":\n    main()\n'


def but(*changes: tuple[str, str], text: str = SCRIPT) -> str:
    """The script with some of its texts changed."""
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


def converted(*changes: tuple[str, str], text: str = SCRIPT, **arguments: object) -> str:
    """The script with some of its texts changed, as the rule leaves it."""
    result = run_transform("data-parallel", but(*changes, text=text), **arguments)  # type: ignore[arg-type]
    assert result.outcome is Outcome.CHANGED, [(note.reason, note.notes) for note in result.notes] or result.reason
    again = run_transform("data-parallel", result.after.decode(), **arguments)  # type: ignore[arg-type]
    assert again.outcome is Outcome.CLEAN
    assert not again.notes
    compile(result.after, "train.py", "exec")
    return result.after.decode()


# What is none of the rule's business -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(but((WRAP, "model = Net().to(device)")), id="no wrapper"),
        pytest.param(
            "class DataParallel:\n    def __init__(self, model): ...\n\nmodel = DataParallel(print)\n", id="F81 class of the same name"
        ),
        pytest.param("def wrap(nn, model):\n    return nn.DataParallel(model)\n", id="F81 parameter named nn"),
        pytest.param('text = "nn.DataParallel(model)"\n', id="only in a string"),
        pytest.param(
            "from torch import nn\n\ndef wrap(model):\n    return nn.parallel.DistributedDataParallel(model)\n", id="processes already"
        ),
        pytest.param(
            "from torch import nn\n\ndef inner(model):\n    return model if isinstance(model, nn.DataParallel) else None\n",
            id="only asked for",
        ),
    ],
)
def test_a_file_that_wraps_nothing_is_left_alone(text: str) -> None:
    """Where nothing is wrapped by torch's DataParallel there is nothing to say."""
    check_noop("data-parallel", text)


# What is held ----------------------------------------------------------------------------------------------------------

HELD = {
    # The script
    "no main guard (trap 26)": ("no-main-guard", [(GUARD, "main()\n")]),
    "guard beside a call on import": ("no-main-guard", [(GUARD, GUARD + "\nmain()\n")]),
    "process group": ("already-distributed", [("import os\n", "import os\nimport torch.distributed as dist\n")]),
    "spawned workers": ("already-distributed", [(GUARD, 'if __name__ == "__main__":\n    torch.multiprocessing.spawn(main, nprocs=2)\n')]),
    "rank of a launcher (trap 18)": (
        "already-distributed",
        [
            (
                '    parser.add_argument("--resume", default="")\n',
                '    parser.add_argument("--resume", default="")\n    parser.add_argument("--local_rank", type=int)\n',
            )
        ],
    ),
    "framework": ("framework", [("import os\n", "import os\nfrom accelerate import Accelerator\n")]),
    "waits for a key": ("interactive", [("    torch.manual_seed(0)\n", '    torch.manual_seed(0)\n    input("go?")\n')]),
    "runs a command": ("shell-command", [("    torch.manual_seed(0)\n", '    torch.manual_seed(0)\n    os.system("mkdir -p out")\n')]),
    "builtin of another meaning": ("builtin-taken", [("import os\n", "import os\n\nint = os.path.getsize\n")]),
    # The wrapper
    "one device": ("single-device", [(WRAP, "model = nn.DataParallel(Net(), device_ids=[0]).to(device)")]),
    "other output device": ("output-device", [(WRAP, "model = nn.DataParallel(Net(), [0, 1], 1).to(device)")]),
    "other dimension": ("scatter-dimension", [(WRAP, "model = nn.DataParallel(Net(), dim=1).to(device)")]),
    "hidden arguments": ("arguments-hidden", [(WRAP, "settings = {}\n    model = nn.DataParallel(Net(), **settings).to(device)")]),
    "wrapped in an expression": ("conditional-wrap", [(WRAP, "model = (nn.DataParallel(Net()) if args.resume else Net()).to(device)")]),
    "wrapped under another name": (
        "conditional-wrap",
        [(WRAP, "net = Net().to(device)\n    model = net\n    if args.resume:\n        model = nn.DataParallel(net)")],
    ),
    "named inside an expression": (
        "named-within",
        [(WRAP, "print(model := nn.DataParallel(Net()).to(device))")],
    ),
    "subclass of the wrapper": ("wrapper-class", [("class Net(", "class Mine(nn.DataParallel):\n    pass\n\n\nclass Net(")]),
    "attribute of the wrapper (trap 5)": ("wrapper-attribute", [(EPOCH, EPOCH + "        print(model.device_ids)\n")]),
    "moved later by what is not known yet": (
        "placed-later",
        [
            (WRAP, "model = nn.DataParallel(Net())"),
            ("    criterion =", "    late = torch.device(args.resume or 'cpu')\n    model.to(late)\n    criterion ="),
        ],
    ),
    "moved later under a condition, behind another use": (
        "placed-later",
        [
            (
                WRAP,
                "model = nn.DataParallel(Net())\n    total = sum(p.numel() for p in model.parameters())\n"
                "    if total and device.type == 'cuda':\n        model.to(device)",
            )
        ],
    ),
    "moved later under a condition that hands it on": (
        "placed-later",
        [
            (
                WRAP,
                "model = nn.DataParallel(Net())\n    if device.type == 'cuda':\n        model.to(device)\n        kept = [model]",
            )
        ],
    ),
    # The network
    "method of the inner network in training (trap 4)": ("module-called", [("output = model(x)", "output = model.module(x)")]),
    "loss of the inner network (trap 4)": (
        "module-called",
        [("loss = criterion(output, y)", "loss = model.module.loss(output, y).mean()")],
    ),
    "two runs of the network before an update (F29)": (
        "several-forwards",
        [("output = model(x)", "output = model(x) + model(x.flip(0))")],
    ),
    "a discriminator that runs on real and on made samples (trap 28)": (
        "several-forwards",
        [
            (
                "        output = model(x)\n        loss = criterion(output, y)\n",
                "        made = torch.rand_like(x)\n        loss = criterion(model(x), y) + criterion(model(made.detach()), 1 - y)\n",
            )
        ],
    ),
    "a run for each part (F29)": ("several-forwards", [("output = model(x)", "output = sum(model(part) for part in x.chunk(2))")]),
    "weights used under a condition (F21, trap 8)": (
        "unused-parameters",
        [
            (
                "return self.head(torch.tanh(self.hidden(x)))",
                "h = self.hidden(x)\n        if x.mean() > 0.5:\n            h = self.extra(h)\n        return self.head(h)",
            ),
            ("        self.head =", "        self.extra = nn.Linear(16, 16)\n        self.head ="),
        ],
    ),
    "weights never used (F21)": ("unused-parameters", [("        self.head =", "        self.aux = nn.Linear(4, 4)\n        self.head =")]),
    "frozen after wrapping (trap 8)": (
        "frozen-later",
        [("    criterion =", "    for p in model.module.hidden.parameters():\n        p.requires_grad = False\n    criterion =")],
    ),
    "all its weights frozen, others trained (trap 9)": (
        "unwrapped-parameters",
        [
            (
                WRAP,
                "model = Net().to(device)\n    for p in model.parameters():\n        p.requires_grad = False\n"
                "    model = nn.DataParallel(model)",
            ),
            (
                "    optimizer = torch.optim.SGD(model.parameters(),",
                "    head = nn.Linear(2, 2)\n    optimizer = torch.optim.SGD(head.parameters(),",
            ),
        ],
    ),
    "copied after wrapping (trap 22)": (
        "network-copied",
        [("    criterion =", "    import copy\n    average = copy.deepcopy(model)\n    criterion =")],
    ),
    "saved whole": (
        "whole-network-saved",
        [('torch.save({"model": model.state_dict(), "epoch": epoch + 1}, "last.pt")', 'torch.save(model, "last.pt")')],
    ),
    "handed to a stranger": (
        "network-handed-on",
        [("    criterion =", "    from helpers import watch\n    watch(model)\n    criterion =")],
    ),
    "moved after wrapping": ("network-moved", [(EPOCH, EPOCH + "        model.module.cpu()\n")]),
    "weights known by their prefix (F17)": (
        "prefixed-names",
        [("    criterion =", "    names = {k[7:]: v for k, v in model.state_dict().items()}\n    criterion =")],
    ),
    "second derivatives": ("gradients-by-hand", [("        loss.backward()\n", "        loss.backward(create_graph=True)\n")]),
    # Losses and optimizers
    "sum as the loss (obligation 9)": ("sum-loss", [("nn.CrossEntropyLoss()", 'nn.CrossEntropyLoss(reduction="sum")')]),
    "targets left out": ("unequal-mean", [("nn.CrossEntropyLoss()", "nn.CrossEntropyLoss(ignore_index=255)")]),
    "summed by hand": ("sum-loss", [("loss = criterion(output, y)", "loss = (output[:, 0] - y).pow(2).sum()")]),
    "mean times the batch": ("sum-loss", [("loss = criterion(output, y)", "loss = criterion(output, y) * x.size(0)")]),
    "contrastive loss": ("coupled-loss", [("loss = criterion(output, y)", "loss = criterion(output @ output.t(), y)")]),
    "unknown loss": ("loss-unclear", [("criterion = nn.CrossEntropyLoss()", "from losses import make\n    criterion = make()")]),
    "criterion with weights of its own": (
        "unwrapped-parameters",
        [
            ("torch.optim.SGD(model.parameters(),", "torch.optim.SGD([{'params': model.parameters()}, {'params': head.parameters()}],"),
            ("    criterion =", "    head = nn.Linear(2, 2).to(device)\n    criterion ="),
        ],
    ),
    "optimizer out of sight": (
        "optimizer-unclear",
        [("optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)", "from tools import build\n    optimizer = build()")],
    ),
    "several backward passes": (
        "several-backwards",
        [("        loss.backward()\n", "        loss.backward()\n        (0.1 * criterion(output, y)).backward()\n")],
    ),
    # Data
    "sampler of its own (F19)": (
        "custom-sampler",
        [("shuffle=True)", "sampler=torch.utils.data.RandomSampler(train_set))")],
    ),
    "batch sampler": (
        "custom-sampler",
        [(TRAIN_LOADER, "train_loader = DataLoader(train_set, batch_sampler=torch.utils.data.BatchSampler(range(64), 8, True))")],
    ),
    "iterable dataset (trap 14)": (
        "iterable-dataset",
        [("class Points(Dataset)", "class Points(torch.utils.data.IterableDataset)"), ("shuffle=True", "shuffle=False")],
    ),
    "loader that names its dataset inside": ("loader-unclear", [("DataLoader(train_set,", "DataLoader(samples := train_set,")]),
    "hidden loader arguments": ("loader-arguments", [("shuffle=True)", "**vars(args))")]),
    "batches of one": ("batch-of-one", [("batch_size=args.batch_size, shuffle=True", "shuffle=True")]),
    "batch size in the network's input": (
        "batch-size-elsewhere",
        [
            (
                "    for x, y in loader:\n        x, y = x.to(device), y.to(device)\n        output",
                "    for x, y in loader:\n        x, y = x.to(device).view(size, 4), y.to(device)\n        output",
            ),
            ("optimizer, device, epoch):", "optimizer, device, epoch, size):"),
            ("optimizer, device, epoch)\n", "optimizer, device, epoch, args.batch_size)\n"),
            (TRAIN_LOADER, "size = args.batch_size\n    hidden = torch.zeros(args.batch_size, 4)\n    " + TRAIN_LOADER),
        ],
    ),
    "training data evaluated too": ("loader-shared", [("evaluate(model, test_loader, device)", "evaluate(model, train_loader, device)")]),
    "loader made on import": (
        "loader-on-import",
        [
            ("    train_set = Points(64, 1)\n    " + TRAIN_LOADER + "\n", ""),
            ("def train(", "train_set = Points(64, 1)\ntrain_loader = DataLoader(train_set, batch_size=8, shuffle=True)\n\n\ndef train("),
        ],
    ),
    "loader that goes on for ever": (
        "loader-out-of-sight",
        [
            (
                "    for x, y in loader:\n        x, y = x.to(device), y.to(device)\n        output",
                "    batches = iter(loader)\n    for _ in range(4):\n        x, y = next(batches)\n"
                "        x, y = x.to(device), y.to(device)\n        output",
            )
        ],
    ),
    "split without a seed": (
        "unseeded-split",
        [
            ("    torch.manual_seed(0)\n", ""),
            ("    train_set = Points(64, 1)\n", "    train_set, _ = torch.utils.data.random_split(Points(64, 1), [60, 4])\n"),
        ],
    ),
    "split seeded too late": (
        "unseeded-split",
        [
            ("    torch.manual_seed(0)\n", ""),
            (
                "    train_set = Points(64, 1)\n",
                "    train_set, _ = torch.utils.data.random_split(Points(64, 1), [60, 4])\n    torch.manual_seed(0)\n",
            ),
        ],
    ),
    "split seeded at random": (
        "unseeded-split",
        [
            ("    torch.manual_seed(0)\n", "    torch.manual_seed(random.randint(0, 9))\n"),
            ("import os\n", "import os\nimport random\n"),
            ("    train_set = Points(64, 1)\n", "    train_set, _ = torch.utils.data.random_split(Points(64, 1), [60, 4])\n"),
        ],
    ),
    "total that cannot be joined (trap 17)": ("total-unclear", [("total += loss.item()", "total += max(output[0].tolist())")]),
    "total in a container (trap 17)": (
        "total-unclear",
        [
            ("total += loss.item()", 'stats["loss"] += loss.item()'),
            ("    total = 0.0\n", '    stats = {"loss": 0.0}\n'),
            ("return total / len(loader)", 'return stats["loss"] / len(loader)'),
        ],
    ),
    "batches left to the wrapper (trap 23)": (
        "inputs-not-moved",
        [("        x, y = x.to(device), y.to(device)\n        output", "        output")],
    ),
    # Devices
    "Apple's GPU": (
        "other-devices",
        [('"cuda" if torch.cuda.is_available() else "cpu"', '"mps" if torch.backends.mps.is_available() else "cpu"')],
    ),
    "GPU by an option": ("device-by-option", [('"cuda" if torch.cuda.is_available() else "cpu"', 'f"cuda:{args.epochs}"')]),
    "another GPU than the first": ("several-devices", [('"cuda" if', '"cuda:1" if')]),
    "chosen GPUs in a function": (
        "visible-devices",
        [("    torch.manual_seed(0)\n", '    torch.manual_seed(0)\n    os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"\n')],
    ),
    "moved on import": ("placed-on-import", [("def train(", "SCALE = torch.ones(1).cuda()\n\n\ndef train(")]),
    # Decisions
    "NaN of one process (trap 13)": (
        "rank-decides",
        [("        optimizer.zero_grad()\n", "        if torch.isnan(loss):\n            continue\n        optimizer.zero_grad()\n")],
    ),
    "step in a try (trap 15)": (
        "rank-decides",
        [("        loss.backward()\n", "        try:\n            loss.backward()\n        except RuntimeError:\n            continue\n")],
    ),
    "learning rate by the training loss": (
        "rank-decides",
        [(EPOCH, EPOCH + '        for group in optimizer.param_groups:\n            group["lr"] = 0.1 * loss\n')],
    ),
    "steps by the clock": (
        "rank-decides",
        [
            (STEP, STEP + "        if time.time() > limit:\n            break\n"),
            ("import os\n", "import os\nimport time\n\nlimit = time.time() + 60\n"),
        ],
    ),
    "as many steps as the batch has parts (trap 14)": (
        "loader-out-of-sight",
        [
            (
                "    for x, y in loader:\n        x, y = x.to(device), y.to(device)\n        output",
                "    for x, y in loader:\n      for x, y in zip(x.split(2), y.split(2)):\n"
                "        x, y = x.to(device), y.to(device)\n        output",
            )
        ],
    ),
    # The outside
    "file written amid other work (trap 16)": (
        "effect-unseparated",
        [(EPOCH, EPOCH + '        size = open("log.txt", "a").write(str(loss))\n')],
    ),
    "standard output sent to a file": (
        "effect-unseparated",
        [
            ("    torch.manual_seed(0)\n", "    torch.manual_seed(0)\n    sys.stdout = open('log.txt', 'w')\n"),
            ("import os\n", "import os\nimport sys\n"),
        ],
    ),
    "log read for its path": (
        "log-in-use",
        [
            (
                "    torch.manual_seed(0)\n",
                "    torch.manual_seed(0)\n    from torch.utils.tensorboard import SummaryWriter\n"
                "    writer = SummaryWriter()\n    folder = writer.log_dir\n",
            )
        ],
    ),
    "best file under a name that differs": (
        "path-differs",
        [
            ("import os\n", "import os\nimport time\n"),
            ('"last.pt")', "path)"),
            ("    start = 0\n", '    start = 0\n    path = f"{time.time()}.pt"\n'),
            (GUARD, GUARD),
            ("        torch.save(", "        torch.save("),
            ("\n\n\nif __name__", '\n    model.load_state_dict(torch.load(path)["model"])\n\n\nif __name__'),
        ],
    ),
}


@pytest.mark.parametrize(("code", "changes"), HELD.values(), ids=HELD)
def test_what_cannot_be_proved_is_held(code: str, changes: list[tuple[str, str]]) -> None:
    """Each obligation that fails keeps the script as it is, with a reason of its own."""
    note = check_held("data-parallel", but(*changes), code)
    assert note.reason is not None and note.reason.help


def test_a_network_that_is_not_trained_is_held() -> None:
    """DataParallel for inference is no matter of processes that share gradients."""
    check_held(
        "data-parallel",
        "import torch\nfrom torch import nn\n\ndef predict(x):\n    net = nn.DataParallel(nn.Linear(2, 2)).cuda()\n    return net(x)\n",
        "inference-only",
    )


def test_a_network_whose_loop_stands_in_another_file_is_held() -> None:
    """Network, loader and loop must be seen together."""
    text = """
        from torch import nn
        from loop import fit

        def main():
            model = nn.DataParallel(nn.Linear(2, 2))
            return model

        if __name__ == "__main__":
            fit(main())
    """
    check_held("data-parallel", text, "loop-elsewhere", modules={"loop.py": "def fit(model):\n    model(1).mean().backward()\n"})


def test_a_loader_that_another_file_makes_is_held() -> None:
    """Its sampler would have to be made there; what is said of lines is said of this file's lines only."""
    text = """
        import torch
        from torch import nn
        from data import batches

        def main():
            model = nn.DataParallel(nn.Linear(2, 2)).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            loader = batches(model)
            for x in loader:
                optimizer.zero_grad()
                model(x.cuda()).mean().backward()
                optimizer.step()

        if __name__ == "__main__":
            main()
    """
    data = "from torch.utils.data import DataLoader\n\ndef batches(data, **settings):\n    return DataLoader(data, **settings)\n"
    note = check_held("data-parallel", text, "loader-out-of-sight", modules={"data.py": data})
    assert not any("**" in words for words in note.notes)


def test_further_reasons_are_told_beside_the_first() -> None:
    """A user who clears one obstacle learns of the next at once."""
    note = check_held(
        "data-parallel", but((GUARD, "main()\n"), ("nn.CrossEntropyLoss()", 'nn.CrossEntropyLoss(reduction="sum")')), "no-main-guard"
    )
    assert any("sum over the batch" in words for words in note.notes)


# What changes ----------------------------------------------------------------------------------------------------------

CHANGED = {
    "global batch kept (F27)": ([], ["batch_size=batch_share(args.batch_size)", "share, rest = divmod(batch_size, process_count())"], []),
    "shuffle moves into the sampler (F19, trap 1)": (
        [],
        [
            "sampler = DistributedSampler(train_set, shuffle=True) if process_count() > 1 else None",
            "shuffle=sampler is None, sampler=sampler)",
        ],
        [],
    ),
    "positional shuffle (F19)": (
        [(TRAIN_LOADER, "train_loader = DataLoader(train_set, args.batch_size, True)")],
        ["train_loader = DataLoader(train_set, batch_share(args.batch_size), sampler is None, sampler=sampler)"],
        [],
    ),
    "shuffle by a setting": (
        [("shuffle=True", "shuffle=args.epochs > 1")],
        ["DistributedSampler(train_set, shuffle=args.epochs > 1)", "shuffle=args.epochs > 1 and sampler is None, sampler=sampler)"],
        [],
    ),
    "no shuffle": (
        [("shuffle=True", "shuffle=False")],
        ["DistributedSampler(train_set, shuffle=False)", "shuffle=False, sampler=sampler)"],
        ["set_epoch"],
    ),
    "order renewed in each epoch (trap 2)": (
        [],
        ["    if process_count() > 1:\n        loader.sampler.set_epoch(epoch)\n    for x, y in loader:\n"],
        [],
    ),
    "order renewed where the epoch has no number": (
        [("optimizer, device, epoch):", "optimizer, device):"), ("optimizer, device, epoch)\n", "optimizer, device)\n")],
        ["loader.sampler.set_epoch(loader.sampler.epoch + 1)"],
        [],
    ),
    "workers shared out (trap 20)": (
        [
            ("shuffle=True", "shuffle=True, num_workers=8"),
            ("DataLoader(Points(31, 2), batch_size", "DataLoader(Points(31, 2), num_workers=0, batch_size"),
        ],
        ["num_workers=math.ceil(8 / process_count())", "import math\n", "num_workers=0, batch_size"],
        [],
    ),
    "other loader arguments stay": (
        [("shuffle=True", "shuffle=True, drop_last=True, pin_memory=True")],
        ["drop_last=True, pin_memory=True"],
        [],
    ),
    "harmless ** stays": (
        [
            (
                TRAIN_LOADER,
                "extra = {'pin_memory': True, 'num_workers': 1} if args.resume else {}\n    "
                + TRAIN_LOADER.replace("True)", "True, **extra)"),
            )
        ],
        ["sampler=sampler, **extra)"],
        [],
    ),
    "dataset made in the call": (
        [("    train_set = Points(64, 1)\n", ""), ("DataLoader(train_set,", "DataLoader(Points(64, 1),")],
        ["train_set = Points(64, 1)\n    sampler = DistributedSampler(train_set, shuffle=True)", "DataLoader(train_set, batch_size"],
        [],
    ),
    "downloaded dataset": (
        [("Points(64, 1)\n", "Points(64, 1, download=True)\n"), ("size, seed):", "size, seed, download=False):")],
        ["    with main_process_first():\n        train_set = Points(64, 1, download=True)\n", "import contextlib\n"],
        [],
    ),
    "downloaded dataset made in the call": (
        [
            ("    train_set = Points(64, 1)\n", ""),
            ("DataLoader(train_set,", "DataLoader(Points(64, 1, download=True),"),
            ("size, seed):", "size, seed, download=False):"),
        ],
        ["    with main_process_first():\n        train_set = Points(64, 1, download=True)\n    sampler"],
        [],
    ),
    "split with a seed": (
        [("    train_set = Points(64, 1)\n", "    train_set, _ = torch.utils.data.random_split(Points(64, 1), [60, 4])\n")],
        ["DistributedSampler(train_set"],
        [],
    ),
    "split in a function, seeded by another": (
        [
            ("    torch.manual_seed(0)\n", "    seed_all(0)\n"),
            ("    train_set = Points(64, 1)\n", "    train_set = data()\n"),
            (
                "def train(",
                "def seed_all(seed):\n    torch.manual_seed(seed)\n\n\n"
                "def data():\n    return torch.utils.data.random_split(Points(64, 1), [60, 4])[0]\n\n\ndef train(",
            ),
        ],
        ["DistributedSampler(train_set"],
        [],
    ),
    "chained placing comes before wrapping (trap 10)": ([], ["model = distribute(Net().to(device))\n"], []),
    "hard-coded placing": (
        [(WRAP, "model = nn.DataParallel(Net()).cuda()"), ("to(device)", "cuda()")],
        ["model = distribute(Net().cuda())\n", "x, y = x.cuda(), y.cuda()\n"],
        [],
    ),
    "placing before wrapping": (
        [(WRAP, "model = Net().to(device)\n    model = nn.DataParallel(model)")],
        ["    model = distribute(model)\n"],
        [],
    ),
    "placing after wrapping": (
        [(WRAP, "model = nn.DataParallel(Net())\n    model.to(device)")],
        ["    model = distribute(Net().to(device))\n    model.to(device)\n"],
        [],
    ),
    "placing after wrapping, where there is CUDA": (
        [(WRAP, "model = Net()\n    model = nn.DataParallel(model)\n    if torch.cuda.is_available():\n        model = model.cuda()")],
        ["    model = Net()\n    if torch.cuda.is_available():\n        model = model.cuda()\n    model = distribute(model)\n"],
        [],
    ),
    "placing what was made to be wrapped, where there is CUDA": (
        [(WRAP, "model = nn.DataParallel(Net())\n    if torch.cuda.is_available():\n        model.cuda()")],
        ["    model = Net()\n    if torch.cuda.is_available():\n        model.cuda()\n    model = distribute(model)\n"],
        [],
    ),
    "wrapped where there are several GPUs": (
        [
            (
                WRAP,
                "model = Net()\n    if torch.cuda.device_count() > 1:\n        print('several')\n        # dim = 0\n"
                "        model = nn.DataParallel(model)\n    model.to(device)",
            )
        ],
        [
            "    if process_count() > 1:\n        if is_main_process():\n            print('several')\n        # dim = 0\n"
            "        model = distribute(model.to(device))\n    model.to(device)\n"
        ],
        [],
    ),
    "wrapped beside other settings": (
        [
            (
                WRAP,
                "model = Net().to(device)\n    if device.type == 'cuda':\n        model = nn.DataParallel(model)\n"
                "        torch.backends.cudnn.benchmark = True",
            )
        ],
        ["    if device.type == 'cuda':\n        torch.backends.cudnn.benchmark = True\n    model = distribute(model)\n"],
        [],
    ),
    "placed under the same condition": (
        [(WRAP, "model = Net()\n    if args.resume:\n        model = nn.DataParallel(model)\n        model.to(device)")],
        ["    if args.resume:\n        model.to(device)\n    model = distribute(model)\n"],
        [],
    ),
    "placed behind another condition": (
        [
            (
                WRAP,
                "model = Net()\n    if args.resume:\n        model = nn.DataParallel(model)\n        args.epochs = 2\n    model.to(device)",
            )
        ],
        ["        args.epochs = 2\n    model = distribute(model.to(device))\n    model.to(device)\n"],
        [],
    ),
    "placed in both branches": (
        [
            (
                WRAP,
                "model = Net()\n    if args.resume:\n        model = nn.DataParallel(model).to(device)\n"
                "    else:\n        model = model.to(device)",
            )
        ],
        ["        model = model.to(device)\n    else:\n        model = model.to(device)\n    model = distribute(model)\n"],
        [],
    ),
    "devices listed": (
        [(WRAP, "model = nn.DataParallel(Net(), device_ids=range(torch.cuda.device_count())).to(device)")],
        ["model = distribute(Net().to(device))"],
        [],
    ),
    "GPU by number (F23)": (
        [('"cuda" if', '"cuda:0" if'), ("criterion = nn.CrossEntropyLoss()", "criterion = nn.CrossEntropyLoss().to('cuda:0')")],
        ['torch.device("cuda" if', '.to("cuda")'],
        ["cuda:0"],
    ),
    "GPU by number in calls (F23)": (
        [
            (WRAP, "model = nn.DataParallel(Net()).cuda(0)"),
            ("x, y = x.to(device), y.to(device)", "x, y = x.cuda(device=0, non_blocking=True), y.to(0)"),
            (
                'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")',
                'torch.cuda.set_device(0)\n    device = torch.device("cuda", 0)',
            ),
        ],
        [
            "model = distribute(Net().cuda())",
            'x, y = x.cuda(non_blocking=True), y.to("cuda")',
            '    if process_count() == 1:\n        torch.cuda.set_device(0)\n    device = torch.device("cuda")\n',
        ],
        [],
    ),
    "batches left to the wrapper are moved (trap 23)": (
        [("        x, y = x.to(device), y.to(device)\n        output", "        y = y.to(device)\n        output")],
        ["output = model(x.to(device))\n"],
        [],
    ),
    "weights asked of the inner network": (
        [("torch.optim.SGD(model.parameters()", "torch.optim.SGD(model.module.parameters()")],
        ["torch.optim.SGD(unwrap(model).parameters()"],
        [],
    ),
    "asked for the wrapper": (
        [
            (
                "    criterion =",
                "    plain = model.module if isinstance(model, nn.DataParallel) else model\n"
                "    print(sum(p.numel() for p in plain.parameters()))\n    criterion =",
            )
        ],
        ["plain = unwrap(model) if isinstance(model, nn.parallel.DistributedDataParallel) else model"],
        [],
    ),
    "inner network under a name of its own": (
        [(EPOCH, EPOCH + "        plain = model.module if hasattr(model, 'module') else model\n        plain.save_pretrained('out')\n")],
        ["        plain = unwrap(model) if hasattr(model, 'module') else model\n", "            plain.save_pretrained('out')\n"],
        [],
    ),
    "loss that the network returns (trap 24)": (
        [
            (
                "def forward(self, x):\n        return self.head(torch.tanh(self.hidden(x)))",
                "def forward(self, x, y=None):\n        z = self.head(torch.tanh(self.hidden(x)))\n"
                "        return z if y is None else nn.functional.cross_entropy(z, y)",
            ),
            ("        output = model(x)\n        loss = criterion(output, y)\n", "        loss = model(x, y).mean()\n"),
        ],
        ["        loss = model(x, y).mean()\n", "mean_over_processes(total)"],
        [],
    ),
    "total over all epochs": (
        [
            ("total += loss.item()\n    return total / len(loader)", "seen.append(1)"),
            ("    total = 0.0\n    for x", "    for x"),
            (
                "        loss = train(model, train_loader, criterion, optimizer, device, epoch)\n",
                "        model.train()\n"
                "        for x, y in train_loader:\n"
                "            loss = criterion(model(x.to(device)), y.to(device))\n"
                "            optimizer.zero_grad()\n"
                "            loss.backward()\n"
                "            optimizer.step()\n"
                "            total += loss.item()\n",
            ),
            ("    start = 0\n", "    start = total = 0\n"),
            (
                "def train(model, loader, criterion, optimizer, device, epoch):",
                "def spare(model, loader, criterion, optimizer, device, seen):",
            ),
            ("\n\n\nif __name__", "\n    print(total)\n\n\nif __name__"),
        ],
        ["    total = mean_over_processes(total)\n    if is_main_process():\n        print(total)\n"],
        ["        total = mean"],
    ),
    "checkpoints without the prefix (F17, trap 11)": (
        [],
        ['{"model": unwrap(model).state_dict(), "epoch": epoch + 1}', 'load_weights(model, checkpoint["model"])'],
        [],
    ),
    "checkpoints loaded off the first GPU (F23, trap 12)": ([], ['torch.load(args.resume, map_location="cpu")'], []),
    "options of a load stay": (
        [('model.load_state_dict(checkpoint["model"])', 'model.load_state_dict(checkpoint["model"], strict=False)')],
        ['load_weights(model, checkpoint["model"], strict=False)'],
        [],
    ),
    "best weights at the end": (
        [
            (
                "\n\n\nif __name__",
                '\n    model.load_state_dict(torch.load("last.pt")["model"])\n'
                "    print(evaluate(model, test_loader, device))\n\n\nif __name__",
            )
        ],
        [
            "    if process_count() > 1:\n"
            "        torch.distributed.barrier()  # the main process has saved by now\n    load_weights(model, torch.load("
        ],
        [],
    ),
    "means are averaged (trap 17)": ([], ["    total = mean_over_processes(total)\n    return total / len(loader)\n"], []),
    "sums and counts are added (trap 17)": (
        [
            ("total += loss.item()", "total += loss.item() * x.size(0)\n        seen += len(y)"),
            ("    total = 0.0\n", "    total, seen = 0.0, 0\n"),
            ("total / len(loader)", "total / seen"),
        ],
        ["    total = sum_over_processes(total)\n    seen = sum_over_processes(seen)\n    return total / seen\n"],
        ["mean_over_processes"],
    ),
    "counts of steps are everybody's": (
        [
            ("total += loss.item()", "total += loss.item()\n        steps += 1"),
            ("    total = 0.0\n", "    total = 0.0\n    steps = 0\n"),
            ("total / len(loader)", "total / steps"),
        ],
        ["    total = mean_over_processes(total)\n    return total / steps\n"],
        ["(steps)"],
    ),
    "early stopping (trap 13)": (
        [(EPOCH, EPOCH + "        if accuracy > 0.99:\n            break\n")],
        ["        if from_main_process(accuracy > 0.99):\n            break\n"],
        [],
    ),
    "patience": (
        [
            ("    start = 0\n", "    start = bad = 0\n    best = 0.0\n"),
            (
                EPOCH,
                EPOCH + "        bad = 0 if accuracy > best else bad + 1\n"
                "        best = max(best, accuracy)\n        if bad > 3:\n            return\n",
            ),
        ],
        ["        if from_main_process(bad > 3):\n            return\n"],
        [],
    ),
    "learning rate by the metric": (
        [
            (
                EPOCH,
                EPOCH
                + '        if accuracy < 0.5:\n            for group in optimizer.param_groups:\n                group["lr"] *= 0.1\n',
            )
        ],
        ["        if from_main_process(accuracy < 0.5):\n            for group"],
        [],
    ),
    "decision by what a function collects": (
        [
            ("total += loss.item()", "total += loss.item()\n        history.append(loss.item())"),
            ("device, epoch):", "device, epoch, history):"),
            ("device, epoch)\n", "device, epoch, history)\n"),
            ("    start = 0\n", "    start = 0\n    history = []\n"),
            (EPOCH, EPOCH + "        if history[-1] < 0.1:\n            break\n"),
        ],
        ["        if from_main_process(history[-1] < 0.1):\n"],
        [],
    ),
    "metric object that may wait for other processes": (
        [
            (EPOCH, EPOCH + "        print(metric.compute())\n"),
            ("    start = 0\n", "    start = 0\n    metric = torchmetrics.Accuracy()\n"),
            ("import torch\n", "import torch\nimport torchmetrics\n"),
        ],
        ["            print(epoch, repr(loss), repr(accuracy))\n        print(metric.compute())\n"],
        [],
    ),
    "total written out": (
        [("total += loss.item()", "total = total + loss.item()")],
        ["    total = mean_over_processes(total)\n"],
        [],
    ),
    "loss of two terms": (
        [
            ("loss = criterion(output, y)\n", "loss = criterion(output, y)\n        loss += 0.4 * criterion(output, y)\n"),
            ("    return total / len(loader)", "    print(loss.item())\n    return total / len(loader)"),
        ],
        ["    if is_main_process():\n        print(loss.item())\n"],
        ["(loss)\n"],
    ),
    "one-line block": (
        [(STEP, STEP + "        if epoch == 0: print(loss.item())\n        for part in y: print(1); part.add_(0)\n")],
        ["        if is_main_process() and epoch == 0: print(loss.item())\n        for part in y: print(1); part.add_(0)\n"],
        [],
    ),
    "the same test in all processes": (
        [(EPOCH, EPOCH + "        if epoch > 100:\n            break\n")],
        ["        if epoch > 100:\n"],
        ["from_main_process"],
    ),
    "plateau": (
        [
            ("    start = 0\n", "    start = 0\n    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)\n"),
            (EPOCH, EPOCH + "        scheduler.step(accuracy)\n"),
        ],
        ["scheduler.step(from_main_process(accuracy))"],
        [],
    ),
    "printing and saving": (
        [],
        ["        if is_main_process():\n            print(epoch, repr(loss), repr(accuracy))\n            torch.save("],
        [],
    ),
    "a comment begins a new part": (
        [("    torch.manual_seed(0)\n", "    print('ready')\n\n    # Part one\n    print('go')\n    torch.manual_seed(0)\n")],
        ["        print('ready')\n\n    # Part one\n    if is_main_process():\n        print('go')\n    torch"],
        [],
    ),
    "printing now and then": (
        [(STEP, STEP + "        if epoch % 2 == 0:\n            print(loss.item())\n")],
        ["        if is_main_process() and epoch % 2 == 0:\n            print(loss.item())\n"],
        [],
    ),
    "print that also computes": (
        [("accuracy = evaluate(model, test_loader, device)\n", "print(evaluate(model, test_loader, device))\n"), (EPOCH, "")],
        ["        print(evaluate(model, test_loader, device))\n        if is_main_process():\n            torch.save("],
        [],
    ),
    "folder": (
        [
            (
                "    torch.manual_seed(0)\n",
                "    torch.manual_seed(0)\n    if not os.path.exists('out'):\n"
                "        os.mkdir('out')\n    os.makedirs('more', exist_ok=True)\n",
            )
        ],
        ["    if is_main_process() and not os.path.exists('out'):\n        os.mkdir('out')\n    os.makedirs('more', exist_ok=True)\n"],
        [],
    ),
    "file written line by line": (
        [(EPOCH, EPOCH + "        with open('log.txt', 'a') as log:\n            line = f'{epoch} {loss}'\n            log.write(line)\n")],
        ["            with open('log.txt', 'a') as log:\n                line = f'{epoch} {loss}'\n"],
        [],
    ),
    "log kept open": (
        [
            ("    start = 0\n", "    start = 0\n    log = open('log.txt', 'w')\n"),
            (EPOCH, EPOCH + "        log.write(str(loss))\n"),
            ("\n\n\nif __name__", "\n    log.close()\n\n\nif __name__"),
        ],
        [
            "    log = open('log.txt', 'w') if is_main_process() else None\n",
            "            log.write(str(loss))\n",
            "    if is_main_process():\n        log.close()\n",
        ],
        [],
    ),
    "progress bar": (
        [
            (
                "for x, y in loader:\n        x, y = x.to(device), y.to(device)\n        output",
                "for x, y in tqdm(loader):\n        x, y = x.to(device), y.to(device)\n        output",
            ),
            ("import os\n", "import os\nfrom tqdm import tqdm\n"),
        ],
        ["in tqdm(loader, disable=not is_main_process()):", "        loader.sampler.set_epoch(epoch)\n"],
        [],
    ),
    "clean-up (trap 26)": (
        [],
        ['if __name__ == "__main__":\n    setup_distributed()\n    try:\n        main()\n    finally:\n        cleanup_distributed()\n'],
        [],
    ),
    "helpers' names are free (F89)": (
        [("def train(", "def unwrap(x):\n    return x\n\n\nsampler = distribute = None\n\n\ndef train(")],
        ["def unwrap_2(model):", "def distribute_2(model):", "train_sampler = DistributedSampler(", "unwrap_2(model).state_dict()"],
        [],
    ),
    "bare name (F93)": (
        [("from torch import nn\n", "from torch import nn\nfrom torch.nn import DataParallel\n"), ("nn.DataParallel(", "DataParallel(")],
        ["from torch.nn.parallel import DistributedDataParallel\n", "return DistributedDataParallel(model, device_ids=gpus)"],
        ["import DataParallel"],
    ),
    "alias (F93)": (
        [
            ("from torch import nn\n", "from torch import nn\nfrom torch.nn import DataParallel as Parallel\n"),
            ("nn.DataParallel(", "Parallel("),
        ],
        ["return DistributedDataParallel(model, device_ids=gpus)"],
        ["Parallel as"],
    ),
    "inner modules (F93)": (
        [
            ("nn.DataParallel(", "torch.nn.parallel.DataParallel("),
            ("    train_loader = DataLoader(", "    train_loader = dataloader.DataLoader("),
            ("from torch import nn\n", "from torch import nn\nfrom torch.utils.data import dataloader\n"),
        ],
        ["return nn.parallel.DistributedDataParallel(model, device_ids=gpus)", "sampler = torch.utils.data.DistributedSampler(train_set"],
        [],
    ),
    "dotted names (F93)": (
        [
            ("nn.DataParallel(", "torch.nn.DataParallel("),
            ("    train_loader = DataLoader(", "    train_loader = torch.utils.data.DataLoader("),
        ],
        ["nn.parallel.DistributedDataParallel(model, device_ids=gpus)", "torch.utils.data.DistributedSampler(train_set"],
        ["import DistributedSampler"],
    ),
}


@pytest.mark.parametrize(("changes", "there", "gone"), CHANGED.values(), ids=CHANGED)
def test_each_part_is_rewritten(changes: list[tuple[str, str]], there: list[str], gone: list[str]) -> None:
    """Each thing that one process did for all GPUs becomes what one of several processes does."""
    text = converted(*changes)
    assert [words for words in there if words not in text] == [], text
    assert [words for words in gone if words in text] == [], text
    assert "nn.DataParallel(" not in text


def test_one_finding_carries_the_whole_change() -> None:
    """Two wrapped networks of one loop change together, on the line of the first."""
    text = but(
        ("        self.head = nn.Linear(16, 2)\n", ""),
        ("return self.head(torch.tanh(self.hidden(x)))", "return torch.tanh(self.hidden(x))"),
        (WRAP, WRAP + "\n    head = nn.DataParallel(nn.Linear(16, 2)).to(device)"),
        ("output = model(x)", "output = head(model(x))"),
        ("def train(model,", "def train(model, head,"),
        ("train(model, train", "train(model, head, train"),
        ("(model(x).argmax", "(head(model(x)).argmax"),
        ("evaluate(model,", "evaluate(model, head,"),
        ("torch.optim.SGD(model.parameters(),", "torch.optim.SGD([*model.parameters(), *head.parameters()],"),
    )
    result = run_transform("data-parallel", text)
    assert result.outcome is Outcome.CHANGED, result.notes
    assert [note.line for note in result.notes] == [text.splitlines().index("    " + WRAP) + 1]
    assert result.after.decode().count("= distribute(") == 2


def test_the_user_is_told_what_to_know() -> None:
    """The new command, the plain run, the batch, old checkpoints: each has its sentence."""
    result = run_transform("data-parallel", SCRIPT)
    (note,) = result.notes
    words = " ".join(note.notes)
    assert "torchrun --standalone --nproc_per_node=N train.py" in words
    assert "Plain python train.py now trains on one GPU" in words
    assert "batch size stays" in words
    assert "learning rate" in words
    assert '"module."' in words
    assert note.effects == ("numerics", "process", "order", "checkpoint")


def test_nothing_is_written_that_the_file_did_not_ask_for() -> None:
    """No synchronised batch norm, which a CPU lacks (trap 7), no search for unused weights, no buffer switch (trap 29), no processes."""
    text = converted()
    assert [word for word in ("SyncBatchNorm", "find_unused_parameters", "broadcast_buffers", "spawn", "empty_cache") if word in text] == []


@pytest.mark.parametrize(("samples", "batch", "processes"), [(64, 8, 2), (31, 8, 2), (7, 4, 2), (100, 12, 3), (5, 8, 4)])
def test_an_epoch_has_as_many_steps_as_before(samples: int, batch: int, processes: int) -> None:
    """Shares of batches over shares of samples: schedules by steps stay right (trap 3), and no process runs out first (trap 14)."""
    data = list(range(samples))
    shares = [DistributedSampler(data, num_replicas=processes, rank=rank) for rank in range(processes)]  # type: ignore[arg-type, var-annotated]
    steps = {len(DataLoader(data, batch // processes, sampler=share)) for share in shares}  # type: ignore[arg-type, var-annotated]
    assert steps == {len(DataLoader(data, batch))}  # type: ignore[arg-type, var-annotated]


def helpers() -> dict[str, Any]:
    """The functions that a script is given, as this process runs them."""
    names: dict[str, Any] = {"__name__": "train"}
    exec(compile(find("data-parallel").after, "train.py", "exec"), names)
    return names


@pytest.mark.parametrize(
    "variables",
    [
        pytest.param({}, id="plain python"),
        pytest.param({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, id="scheduler"),
        pytest.param({"RANK": "1", "WORLD_SIZE": "2"}, id="half a launcher"),
    ],
)
def test_only_a_launcher_makes_several_processes(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without all that torchrun sets, the script runs as one process that prints and saves (trap 19)."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    given = helpers()
    given["setup_distributed"]()
    assert given["process_count"]() == 1
    assert given["is_main_process"]()
    given["cleanup_distributed"]()


def test_with_one_process_the_helpers_change_nothing() -> None:
    """Each gives back what it was given, so that a plain run computes the same numbers."""
    given = helpers()
    model, value = torch.nn.Linear(1, 1), torch.tensor(3)
    assert given["distribute"](model) is model
    assert given["unwrap"](model) is model
    assert given["batch_share"](7) == 7
    for helper in ("sum_over_processes", "mean_over_processes", "from_main_process"):
        assert given[helper](value) is value
    with given["main_process_first"]():
        pass


def test_weights_load_with_and_without_the_prefix() -> None:
    """Files of DataParallel and of the network itself load, also where the network has a part that is called module."""

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = torch.nn.Linear(1, 1)

    load = helpers()["load_weights"]
    for model in (torch.nn.Linear(1, 1), Outer()):
        plain = {name: torch.full_like(value, 3) for name, value in model.state_dict().items()}
        for state in (plain, {f"module.{name}": value for name, value in plain.items()}):
            load(model, {name: value.clone() for name, value in state.items()})
            assert all((value == 3).all() for value in model.state_dict().values())
            torch.nn.init.zeros_(next(model.parameters()))


def test_the_examples_of_the_rule_itself() -> None:
    """The text under Before becomes the text under After."""
    rule = find("data-parallel")
    check_transformed(rule, rule.before, rule.after)


# What the rewritten script does ----------------------------------------------------------------------------------------


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def test_a_plain_run_prints_and_saves_the_same_numbers(tmp_path: Path) -> None:
    """On a machine without CUDA the rewritten script trains bit for bit as before, and saves the same weights without the prefix."""
    for name, text in (("before", SCRIPT), ("after", converted())):
        (tmp_path / name).mkdir()
        write(tmp_path / name, "train.py", text)
    before, after = (run_on_cpu(tmp_path / name / "train.py") for name in ("before", "after"))
    assert before == after
    old, new = (torch.load(tmp_path / name / "last.pt", weights_only=True)["model"] for name in ("before", "after"))
    assert {f"module.{name}" for name in new} == old.keys()
    assert all(torch.equal(value, old[f"module.{name}"]) for name, value in new.items())


def test_old_and_new_checkpoints_resume(tmp_path: Path) -> None:
    """A file of DataParallel goes on where it stopped, with equal numbers, and so does one of the rewritten script."""
    old = write(tmp_path, "old.py", SCRIPT)
    new = write(tmp_path, "new.py", converted())
    run_on_cpu(old, "--epochs", "1")
    os.rename(tmp_path / "last.pt", tmp_path / "old.pt")
    expected = run_on_cpu(old, "--resume", "old.pt")
    assert run_on_cpu(new, "--resume", "old.pt") == expected
    assert run_on_cpu(new, "--resume", "last.pt") == ""


AT_THE_GUARD = but(
    ("def main():\n", 'if __name__ == "__main__":\n'),
    ("\n\n" + GUARD, ""),
    ("shuffle=True", "shuffle=False"),
)
"""The script with its main part under the guard itself, so that a driver sees its variables, and with batches in a fixed order."""

DRIVER = """
import os
import runpy

import torch

names = runpy.run_path("train.py", run_name="__main__")
torch.save(names["unwrap"](names["model"]).state_dict(), f"rank{os.environ.get('RANK', 'plain')}.pt")
"""


def test_f25_no_forward_waits_for_processes_that_are_elsewhere() -> None:
    """Evaluation runs in every process: what the main process does alone holds no forward pass of the wrapped network (F25)."""
    evaluated = "        accuracy = evaluate(model, test_loader, device)\n" + EPOCH
    for text in (converted(), converted((evaluated, "        print(epoch, repr(evaluate(model, test_loader, device)))\n"))):
        conditions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.If)]
        alone = [node for node in conditions if ast.unparse(node.test) == "is_main_process()"]
        assert alone
        calls = [call for node in alone for call in ast.walk(node) if isinstance(call, ast.Call)]
        assert not {ast.unparse(call.func) for call in calls} & {"model", "evaluate", "train"}


def test_script_under_the_guard_itself_is_not_indented() -> None:
    """A long body of the guard gets its first and its last line instead of a try around it all."""
    text = converted(text=AT_THE_GUARD)
    assert 'if __name__ == "__main__":\n    setup_distributed()\n' in text
    assert text.endswith("    cleanup_distributed()\n")
    assert "finally:" not in text


def test_two_processes_train_like_one(tmp_path: Path) -> None:
    """Two processes end with equal weights, within 1e-6 of one process's, and report the same metrics over all the data."""
    write(tmp_path, "train.py", converted(text=AT_THE_GUARD))
    driver = write(tmp_path, "driver.py", DRIVER)
    alone = run_on_cpu(driver)
    together = run_two_processes(driver)
    single, first, second = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in ("plain", "0", "1"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(torch.allclose(first[name], single[name], rtol=0, atol=1e-6) for name in first)
    numbers = [[float(word) for word in text.split()] for text in (alone, together)]
    assert numbers[0] == pytest.approx(numbers[1], abs=1e-6)


def test_processes_that_meet_at_every_corner_end_together(tmp_path: Path) -> None:
    """Batch norm in evaluation, early stopping, a plateau, prepared data and a file loaded at the end: nobody waits for ever."""
    text = converted(
        ("        self.head =", "        self.norm = nn.BatchNorm1d(16)\n        self.head ="),
        ("torch.tanh(self.hidden(x))", "torch.tanh(self.norm(self.hidden(x)))"),
        (
            "size, seed):\n",
            "size, seed, download=False):\n        if download:\n"
            "            open('data.txt', 'w').close()\n        assert os.path.exists('data.txt')\n",
        ),
        ("    train_set = Points(64, 1)\n", "    train_set = Points(64, 1, download=True)\n"),
        ("    start = 0\n", "    start = 0\n    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)\n"),
        ('"last.pt")\n', '"last.pt")\n        scheduler.step(accuracy)\n        if accuracy >= 0.0:\n            break\n'),
        (
            "\n\n\nif __name__",
            '\n    model.load_state_dict(torch.load("last.pt")["model"])\n    print(evaluate(model, test_loader, device))\n\n\nif __name__',
        ),
    )
    printed = run_two_processes(write(tmp_path, "train.py", text))
    assert len([line for line in printed.splitlines() if line.startswith("0 ")]) == 1
    assert not any(name.startswith("module.") for name in torch.load(tmp_path / "last.pt", weights_only=True)["model"])


def test_a_batch_that_cannot_be_divided_stops_the_script(tmp_path: Path) -> None:
    """Rather than train on other batches than the user asked for, the processes say so and end."""
    path = write(tmp_path, "train.py", converted())
    with pytest.raises(AssertionError, match="cannot divide batches of 7 by 2"):
        run_two_processes(path, "--batch-size", "7")
