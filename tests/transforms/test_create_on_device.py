"""create-on-device: which creations stay, which are held, which get ``device=``, and that the values are the same."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests.running import run_on_cpu, run_on_fake_gpu
from torchfix import registry
from torchfix.result import Note, Outcome
from torchfix.testing import check_held, check_noop, check_transformed, run_transform

RULE = "create-on-device"
HEAD = """\
import torch

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""


def changed(before: str, after: str, head: str = HEAD, **arguments: object) -> tuple[Note, ...]:
    """Check one line behind the head."""
    return check_transformed(RULE, f"{head}{before}\n", f"{head}{after}\n", **arguments)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("x = torch.zeros(3, device=device)", id="made there already"),
        pytest.param("x = torch.zeros(3, device=device).to(device)", id="made there and moved there again"),
        pytest.param("x = torch.zeros(3)", id="never moved"),
        pytest.param('x = torch.zeros(3).to("cpu")', id="moved to the host"),
        pytest.param("x = torch.zeros(3).to(torch.float16)", id="a cast"),
        pytest.param("x = torch.zeros(3).to(other.dtype)", id="a cast to another tensor's dtype"),
        pytest.param("x = torch.from_numpy(a).to(device)", id="from_numpy takes no device"),
        pytest.param("x = torch.stack([a, b]).cuda()", id="stack is no factory"),
        pytest.param("x = torch.normal(mean, std).to(device)", id="normal of tensors follows them"),
        pytest.param("x = torch.eye(4)[labels].cuda()", id="picked out of a table"),
        pytest.param("x = torch.zeros(3).numpy().cuda()", id="another method between"),
        pytest.param("x = (y := torch.zeros(3)).cuda()", id="the tensor on the host has a name"),
        pytest.param("x = torch.zeros(3)\nprint(x)\nx = x.to(device)", id="used before its move"),
        pytest.param("x = torch.zeros(3)\ny = x.to(device)", id="moved under another name"),
        pytest.param("x = torch.zeros(3)\nx = x.to(x.device)", id="its own device"),
        pytest.param("x = x.new_zeros(3).to(device)", id="new_zeros"),
        pytest.param("net = torch.nn.Linear(1, 1).to(device)", id="a network"),
        pytest.param("loss = torch.nn.BCELoss().cuda()", id="a loss"),
        pytest.param("x = torch.cuda.FloatTensor(unknown)", id="legacy on the device, sizes or data"),
        pytest.param("x = torch.cuda.FloatTensor(2, 3).normal_()", id="legacy on the device, nothing to gain"),
    ],
)
def test_left_alone(text: str) -> None:
    """What is no creation with a move behind it yields nothing."""
    check_noop(RULE, f"{HEAD}{text}\n")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param("x = torch.ones(2, requires_grad=True).cuda()", "requires-grad", id="F47 in the factory"),
        pytest.param("x = torch.ones(2, requires_grad=flag).to(device)", "requires-grad", id="by a flag"),
        pytest.param("x = torch.ones(2).requires_grad_().cuda()", "requires-grad", id="F47 set on the source"),
        pytest.param(
            "from torch.autograd import Variable\nx = Variable(torch.ones(2), requires_grad=True).cuda()", "requires-grad", id="Variable"
        ),
        pytest.param("x = torch.zeros(2, out=buffer).cuda()", "out-argument", id="out"),
        pytest.param("x = torch.rand(2, generator=g).cuda()", "generator", id="generator"),
        pytest.param("x = torch.zeros(2, pin_memory=True).cuda()", "pinned", id="pinned"),
        pytest.param('x = torch.zeros(2, device="cpu").cuda()', "placed-twice", id="two devices"),
        pytest.param("x = torch.zeros(2, **options).cuda()", "hidden-arguments", id="stars"),
        pytest.param("def f(where):\n    return torch.zeros(2).to(where)", "unknown-device", id="may be a dtype"),
        pytest.param("def f(device):\n    return torch.zeros(2).to(device)", "unknown-device", id="the name proves nothing"),
        pytest.param("def f(rank=None):\n    return torch.zeros(2).cuda(rank)", "unknown-device", id="index out of sight"),
        pytest.param("def f(d):\n    torch.cuda.set_device(d)\n    return torch.zeros(2).cuda(d)", "unknown-device", id="index by its use"),
        pytest.param(
            "def f(dtype):\n    net = torch.nn.Linear(1, 1).to(dtype)\n    return torch.zeros(2).to(dtype)", "unknown-device", id="dtype"
        ),
        pytest.param("x = torch.FloatTensor(unknown).cuda()", "sizes-or-data", id="legacy, sizes or data"),
        pytest.param(
            "import numpy as np\nx = torch.FloatTensor(np.array(3)).cuda()", "sizes-or-data", id="legacy, array without a dimension"
        ),
        pytest.param("torch.set_default_dtype(torch.float64)\nx = torch.Tensor([1]).cuda()", "default-dtype", id="default dtype"),
        pytest.param("x = torch.arange(3).expand(4, 3).to(device)\nx[0, 0] = 5", "broadcast-view", id="written after expand"),
        pytest.param("x = torch.arange(3).expand(4, 3).to(device)\nx += 1", "broadcast-view", id="added to after expand"),
        pytest.param("def f():\n    return torch.arange(3).expand(4, 3).to(device)", "broadcast-view", id="out of sight after expand"),
    ],
)
def test_held(text: str, code: str) -> None:
    """What cannot be proved is left with a reason."""
    check_held(RULE, f"{HEAD}{text}\n", code)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            """
            class Data(Dataset):
                def __getitem__(self, i):
                    return torch.zeros(3).cuda()
            """,
            id="in a dataset",
        ),
        pytest.param(
            """
            def collate(samples):
                return helper(samples)

            def helper(samples):
                return torch.tensor(samples).cuda()

            loader = DataLoader(data, collate_fn=collate)
            """,
            id="called by a collate function",
        ),
        pytest.param(
            """
            def collate(width, samples):
                return torch.zeros(width).cuda()

            loader = DataLoader(data, collate_fn=partial(collate, 3))
            """,
            id="in a partial collate function",
        ),
    ],
)
def test_worker_code_is_held(text: str) -> None:
    """A forked worker must not touch CUDA, so nothing is created there."""
    check_held(
        RULE, "import torch\nfrom functools import partial\nfrom torch.utils.data import DataLoader, Dataset\n" + dedent(text), "in-worker"
    )


def test_dataset_may_create_on_the_device_while_it_is_made() -> None:
    """``__init__`` runs in the main process."""
    head = "import torch\nfrom torch.utils.data import Dataset\n\n\nclass Data(Dataset):\n    def __init__(self):\n        "
    changed("self.mean = torch.zeros(3).cuda()", 'self.mean = torch.zeros(3, device="cuda")', head)


def test_lightning_module_has_no_device_yet() -> None:
    """Before Lightning moves the module ``self.device`` is the host's, in ``__init__`` and ``setup``."""
    head = "import torch\nimport pytorch_lightning as pl\n\n\nclass Net(pl.LightningModule):\n"
    check_held(RULE, head + "    def __init__(self):\n        self.x = torch.zeros(3).to(self.device)\n", "device-not-set")
    changed(
        "        return torch.zeros(3).to(self.device)",
        "        return torch.zeros(3, device=self.device)",
        head + "    def training_step(self, batch, index):\n",
    )


def test_cast_from_float64_is_held_where_mps_may_run() -> None:
    """MPS has no float64, so data that may be float64 must be cast before it gets there."""
    head = 'import torch\n\ndevice = torch.device("mps" if torch.backends.mps.is_available() else "cpu")\n'
    check_held(RULE, head + "x = torch.tensor(data).float().to(device)\n", "float64")
    changed(
        "x = torch.tensor(data, dtype=torch.int64).float().to(device)",
        "x = torch.tensor(data, dtype=torch.int64, device=device).float()",
        head,
    )


def test_inside_an_old_f_string_is_held() -> None:
    """F85: positions inside f-strings are not trusted before Python 3.12."""
    import sys

    text = 'import torch\nprint(f"{torch.zeros(3).cuda().sum():.2f}")\n'
    if sys.version_info < (3, 12):
        check_held(RULE, text, "inside-f-string")
    else:
        check_transformed(RULE, text, text.replace("zeros(3).cuda()", "zeros(3, device='cuda')"))


def test_documented_example() -> None:
    """What the rule says of itself is what it does."""
    rule = registry.find(RULE)
    notes = check_transformed(rule, rule.before, rule.after)
    assert {note.risk for note in notes} == {"exact"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("x = torch.zeros(2, 3).cuda()", 'x = torch.zeros(2, 3, device="cuda")', id="cuda"),
        pytest.param("x = torch.zeros(2).cuda(1)", 'x = torch.zeros(2, device="cuda:1")', id="cuda by number"),
        pytest.param(
            "i = int(n)\nx = torch.zeros(2).cuda(i)", 'i = int(n)\nx = torch.zeros(2, device=torch.device("cuda", i))', id="cuda by index"
        ),
        pytest.param("x = torch.zeros(2).cuda(device)", "x = torch.zeros(2, device=device)", id="cuda by device"),
        pytest.param("x = torch.zeros(2).cuda(non_blocking=True)", 'x = torch.zeros(2, device="cuda")', id="cuda without waiting"),
        pytest.param("x = torch.ones(2).to(device)", "x = torch.ones(2, device=device)", id="to"),
        pytest.param("x = torch.ones(2).to(device=device, non_blocking=True)", "x = torch.ones(2, device=device)", id="to by keyword"),
        pytest.param('x = torch.ones(2).to("cuda:0")', 'x = torch.ones(2, device="cuda:0")', id="to a string"),
        pytest.param("x = torch.ones(*sizes).to(device)", "x = torch.ones(*sizes, device=device)", id="starred sizes"),
        pytest.param("x = torch.ones((2, 3),).to(device)", "x = torch.ones((2, 3), device=device,)", id="trailing comma"),
        pytest.param("x = torch.full((2,), 7).to(device)", "x = torch.full((2,), 7, device=device)", id="full"),
        pytest.param("x = torch.tensor([1, 2]).to(device)", "x = torch.tensor([1, 2], device=device)", id="tensor"),
        pytest.param("x = torch.arange(len(y)).to(device)", "x = torch.arange(len(y), device=device)", id="arange"),
        pytest.param(
            "x = torch.arange(y.size(1) - 1, -1, -1).to(device)", "x = torch.arange(y.size(1) - 1, -1, -1, device=device)", id="arange down"
        ),
        pytest.param("x = torch.tril_indices(3, 3).cuda()", 'x = torch.tril_indices(3, 3, device="cuda")', id="indices"),
        pytest.param("x = torch.zeros_like(y).to(device)", "x = torch.zeros_like(y, device=device)", id="like"),
        pytest.param("x = torch.zeros(3).float().to(device)", "x = torch.zeros(3, device=device).float()", id="cast between"),
        pytest.param("x = torch.zeros(3).to(torch.int64).to(device)", "x = torch.zeros(3, device=device).to(torch.int64)", id="to between"),
        pytest.param("x = torch.zeros(3).unsqueeze(0).cuda()", 'x = torch.zeros(3, device="cuda").unsqueeze(0)', id="axis between"),
        pytest.param("x = torch.zeros(3)[None, :, None].cuda()", 'x = torch.zeros(3, device="cuda")[None, :, None]', id="index between"),
        pytest.param(
            "x = torch.empty(3).fill_(2).zero_().cuda()", 'x = torch.empty(3, device="cuda").fill_(2).zero_()', id="filled between"
        ),
        pytest.param(
            "x = torch.zeros(4).view(2, 2).t().to(device)", "x = torch.zeros(4, device=device).view(2, 2).t()", id="views between"
        ),
        pytest.param(
            "x = torch.arange(4).expand(2, 4).to(device)\nmask = x < y",
            "x = torch.arange(4, device=device).expand(2, 4)\nmask = x < y",
            id="expanded and only read",
        ),
        pytest.param("x = f(torch.zeros(2).to(device), 1)", "x = f(torch.zeros(2, device=device), 1)", id="as an argument"),
        pytest.param("x = torch.zeros(2).to(device) + 1", "x = torch.zeros(2, device=device) + 1", id="as an operand"),
        pytest.param(
            "x = torch.zeros(2, requires_grad=False).to(device)", "x = torch.zeros(2, requires_grad=False, device=device)", id="no gradient"
        ),
        pytest.param(
            "x = torch.zeros(2).to(device).requires_grad_()", "x = torch.zeros(2, device=device).requires_grad_()", id="gradient after"
        ),
        pytest.param("x = torch.zeros(2)\nx = x.to(device)", "x = torch.zeros(2, device=device)", id="next statement"),
        pytest.param(
            "x = torch.zeros(2).float()\nx = x.cuda()", 'x = torch.zeros(2, device="cuda").float()', id="next statement, cast between"
        ),
        pytest.param(
            "x = torch.zeros(2); y = torch.ones(2).cuda(); z = 1", 'x = torch.zeros(2); y = torch.ones(2, device="cuda"); z = 1', id="F75"
        ),
    ],
)
def test_exact_creations_get_their_device(before: str, after: str) -> None:
    """Fixed values are the same on every device, so creating them there is exact."""
    for note in changed(before, after):
        assert (note.risk, note.effects) == ("exact", ())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("x = torch.zeros(2).to(device, torch.half)", "x = torch.zeros(2, dtype=torch.half, device=device)", id="zeros"),
        pytest.param("x = torch.eye(2).to(dtype=t, device=device)", "x = torch.eye(2, dtype=t, device=device)", id="eye by keyword"),
        pytest.param(
            "x = torch.zeros(2, 2).view(4).to(device, t)", "x = torch.zeros(2, 2, dtype=t, device=device).view(4)", id="view between"
        ),
        pytest.param("x = torch.full((2,), 0.1).to(device, t)", "x = torch.full((2,), 0.1, device=device).to(t)", id="full rounds twice"),
        pytest.param(
            "x = torch.tensor(y).to(device=device, dtype=t)", "x = torch.tensor(y, device=device).to(dtype=t)", id="tensor rounds twice"
        ),
        pytest.param(
            "x = torch.arange(3).to(device, t, True)", "x = torch.arange(3, device=device).to(t, True)", id="arange counts in whole numbers"
        ),
        pytest.param("x = torch.zeros(2).half().to(device, t)", "x = torch.zeros(2, device=device).half().to(t)", id="cast twice"),
        pytest.param(
            "x = torch.zeros(2, dtype=s).to(device, t)", "x = torch.zeros(2, dtype=s, device=device).to(t)", id="factory has a dtype"
        ),
        pytest.param(
            "x = torch.zeros(2, 3, 4, 5).to(device, memory_format=torch.channels_last)",
            "x = torch.zeros(2, 3, 4, 5, device=device).to(memory_format=torch.channels_last)",
            id="memory format stays",
        ),
        pytest.param(
            "y.size()\nx = torch.zeros(2).type_as(y)", "y.size()\nx = torch.zeros(2, dtype=y.dtype, device=y.device)", id="type_as"
        ),
        pytest.param("x = torch.arange(2).type_as(y)", "x = torch.arange(2, device=y.device).type_as(y)", id="type_as still casts"),
        pytest.param(
            "y = torch.ones(3)\nx = torch.zeros(2).to(y)",
            "y = torch.ones(3)\nx = torch.zeros(2, dtype=y.dtype, device=y.device)",
            id="to a tensor",
        ),
        pytest.param(
            "y = torch.ones(3)\nx = torch.zeros(2).to(y.device)",
            "y = torch.ones(3)\nx = torch.zeros(2, device=y.device)",
            id="device of a tensor",
        ),
    ],
)
def test_moves_that_cast(before: str, after: str) -> None:
    """A dtype goes into the factory where its values are the same in every dtype, and else stays a cast behind it."""
    for note in changed(before, after):
        assert note.risk == "exact"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = torch.rand(2, 2).cuda()", 'x = torch.rand(2, 2, device="cuda")'),
        ("x = torch.randn(2).double().to(device)", "x = torch.randn(2, device=device).double()"),
        ("x = torch.rand(2).to(device, torch.half)", "x = torch.rand(2, device=device).to(torch.half)"),
        ("x = torch.randperm(9).to(device)", "x = torch.randperm(9, device=device)"),
        ("x = torch.normal(0.0, 1.0, (3,)).to(device)", "x = torch.normal(0.0, 1.0, (3,), device=device)"),
        ("x = torch.empty(3).uniform_(-1, 1).cuda()", 'x = torch.empty(3, device="cuda").uniform_(-1, 1)'),
        ("x = torch.FloatTensor(2, 3).normal_().cuda()", 'x = torch.empty(2, 3, dtype=torch.float32, device="cuda").normal_()'),
        ("x = torch.randn_like(y).to(device)", "x = torch.randn_like(y, device=device)"),
    ],
)
def test_random_creations_change_the_random_stream(before: str, after: str) -> None:
    """The device draws from a generator of its own, which the user is told."""
    (note,) = changed(before, after)
    assert (note.risk, note.effects) == ("numeric", ("rng",))
    assert "seed" in note.notes[0]


@pytest.mark.parametrize("factory", ["linspace(0, 1, 5)", "hann_window(8)", "arange(0, 1, step)"])
def test_computed_creations_may_round_differently(factory: str) -> None:
    """Values that a kernel computes may differ in the last bit between host and device."""
    (note,) = changed(f"x = torch.{factory}.to(device)", f"x = torch.{factory[:-1]}, device=device)")
    assert (note.risk, note.effects) == ("numeric", ("numerics",))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("x = torch.LongTensor([1, 2]).to(device)", "x = torch.tensor([1, 2], dtype=torch.long, device=device)", id="list"),
        pytest.param(
            "x = torch.FloatTensor([0] * n).cuda()", 'x = torch.tensor([0] * n, dtype=torch.float32, device="cuda")', id="repeated list"
        ),
        pytest.param("x = torch.Tensor([[k]]).to(device)", "x = torch.tensor([[k]], dtype=torch.float32, device=device)", id="Tensor"),
        pytest.param(
            "x = torch.FloatTensor(2, n).zero_().cuda()", 'x = torch.zeros(2, n, dtype=torch.float32, device="cuda")', id="zeroed"
        ),
        pytest.param(
            "x = torch.FloatTensor(2, n).fill_(1).cuda()", 'x = torch.empty(2, n, dtype=torch.float32, device="cuda").fill_(1)', id="filled"
        ),
        pytest.param(
            "x = torch.ByteTensor(y.size()).zero_().cuda()", 'x = torch.zeros(y.size(), dtype=torch.uint8, device="cuda")', id="size"
        ),
        pytest.param("x = torch.LongTensor(len(y)).cuda()", 'x = torch.empty(len(y), dtype=torch.long, device="cuda")', id="length"),
        pytest.param(
            "x = torch.cuda.FloatTensor(n, 2).zero_()", 'x = torch.zeros(n, 2, dtype=torch.float32, device="cuda")', id="cuda zeroed"
        ),
        pytest.param("x = torch.cuda.LongTensor([1, 2])", 'x = torch.tensor([1, 2], dtype=torch.long, device="cuda")', id="cuda data"),
    ],
)
def test_legacy_constructors_become_factories(before: str, after: str) -> None:
    """A constructor that knows neither dtype nor device becomes the factory that makes the same tensor."""
    for note in changed(before, after):
        assert "numerics" not in note.effects


def test_variable_stays_around_the_factory() -> None:
    """``Variable(...)`` is another rule's business."""
    changed(
        "x = Variable(torch.zeros(3)).cuda()\ny = Variable(torch.ones(3).cuda())",
        'x = Variable(torch.zeros(3, device="cuda"))\ny = Variable(torch.ones(3, device="cuda"))',
        "import torch\nfrom torch.autograd import Variable\n",
    )


@pytest.mark.parametrize(
    ("head", "factory"),
    [
        ("import torch as th\n", "th.zeros"),
        ("from torch import zeros\n", "zeros"),
        ("from torch import zeros as empty_like\n", "empty_like"),
    ],
)
def test_f93_spelling_of_the_file_stays(head: str, factory: str) -> None:
    """F93: dotted, bare and renamed factories are all known, and stay as they are written."""
    changed(f"x = {factory}(3).cuda()", f'x = {factory}(3, device="cuda")', head)


def test_name_that_the_new_code_needs_is_imported() -> None:
    """F93: ``torch.device`` and dtypes come with an import where the file has none."""
    check_transformed(
        RULE,
        "from torch import FloatTensor\n\nx = FloatTensor([1.0]).cuda()\n",
        'from torch import FloatTensor\nimport torch\n\nx = torch.tensor([1.0], dtype=torch.float32, device="cuda")\n',
    )


def test_f81_shadowed_names_are_left() -> None:
    """F81: a parameter, a local function or a rebinding with torch's name is not torch."""
    check_noop(
        RULE,
        """
        import torch
        from torch import zeros

        def fake(torch, n):
            return torch.zeros(n).cuda()

        def local(n):
            def zeros(n):
                return n
            return zeros(n).cuda()

        class Own:
            def zeros(self, n):
                return self.zeros(n).cuda()
        """,
    )


def test_f75_statement_over_several_lines() -> None:
    """F75: a backslash and a semicolon keep their neighbours."""
    check_transformed(
        RULE,
        "import torch; x = \\\n    torch.zeros(2); y = torch.ones(3) \\\n    .cuda(); z = 1; \\\nw = x + y\n",
        'import torch; x = \\\n    torch.zeros(2); y = torch.ones(3, device="cuda"); z = 1; \\\nw = x + y\n',
    )


def test_f85_new_syntax_is_read() -> None:
    """F85: creations inside match statements and behind walrus operators are found."""
    check_transformed(
        RULE,
        """
        import torch

        def f(cmd):
            match cmd:
                case {"n": int(k)} if (m := k * 2) > 3:
                    return torch.zeros(m).cuda()
                case [a, *rest]:
                    return torch.ones(len(rest)).cuda()
        """,
        """
        import torch

        def f(cmd):
            match cmd:
                case {"n": int(k)} if (m := k * 2) > 3:
                    return torch.zeros(m, device="cuda")
                case [a, *rest]:
                    return torch.ones(len(rest), device="cuda")
        """,
    )


def test_quotes_are_those_of_the_file() -> None:
    """New strings are quoted as most of the file's are."""
    changed("x = torch.zeros(3).cuda()", "x = torch.zeros(3, device='cuda')", "import torch\nname = 'a'\n")


@pytest.mark.parametrize(
    ("text", "device"),
    [
        pytest.param("def f(n, device: torch.device):\n    return {}", "device", id="annotated"),
        pytest.param('def f(n, device="cuda"):\n    return {}', "device", id="default"),
        pytest.param("def f(n, d):\n    return {}\nf(1, device)", "d", id="given by the caller"),
        pytest.param(
            "class A:\n    def __init__(self):\n        self.d = device\n    def f(self, n):\n        return {}", "self.d", id="attribute"
        ),
        pytest.param(
            "class A:\n    def __init__(self, n):\n        self.d = device\n        self.x = {}", "self.d", id="attribute set before"
        ),
        pytest.param("def f(n, x):\n    x.size()\n    return {}", "x.device", id="device of a tensor"),
        pytest.param("def f(n, m):\n    return {}", "next(m.parameters()).device", id="device of a network"),
        pytest.param("import os\ndef f(n):\n    return {}", "int(os.environ['LOCAL_RANK'])", id="index from the launcher"),
    ],
)
def test_devices_are_known_by_how_they_come(text: str, device: str) -> None:
    """Annotation, default, callers, attributes, tensors and networks all prove a device."""
    changed(text.format(f"torch.zeros(n).to({device})"), text.format(f"torch.zeros(n, device={device})"))


def test_device_option_of_the_command_line() -> None:
    """An option whose default is a device is one, also where the program sets it itself."""
    head = "import argparse\nimport torch\n\nparser = argparse.ArgumentParser()\n"
    declared = 'parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")\nargs = parser.parse_args()\n'
    changed("x = torch.zeros(2).to(args.device)", "x = torch.zeros(2, device=args.device)", head + declared)
    stored = 'args = parser.parse_args()\nargs.device = torch.device("cuda")\n\ndef f(args):\n'
    changed(
        "    return torch.zeros(2).to(args.device)\n\nf(args)", "    return torch.zeros(2, device=args.device)\n\nf(args)", head + stored
    )


SCRIPT = """
import torch
from torch.autograd import Variable

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
y = torch.ones(2, 3, dtype=torch.float64).to(device)


def show(name, x):
    print(name, tuple(x.shape), x.dtype, x.stride(), x.is_leaf, x.requires_grad, x.device == y.device, x.tolist())


show("zeros", torch.zeros(2, 3).to(device))
show("ones", torch.ones(4).to(device, torch.float16))
show("full", torch.full((2, 2), 0.1).to(device, torch.float64))
show("eye", torch.eye(3).to(device=device, dtype=torch.bfloat16))
show("arange", torch.arange(5, -1, -1).long().to(device))
show("arange of a float", torch.arange(4.5).to(device))
show("tensor", torch.tensor([[1, 2], [3, 4]]).t().float().to(device))
show("tensor of doubles", torch.tensor([0.1, 0.2]).to(device, torch.float64))
show("like", torch.zeros_like(y).to(device))
show("type_as", torch.ones(1, 2).type_as(y))
show("type_as of numbers", torch.arange(0, 3).view(1, 3).type_as(y))
show("to a tensor", torch.eye(2).to(y))
show("expand", torch.arange(3).unsqueeze(0).expand(2, -1).to(device) + 1)
show("permute", torch.zeros(2, 3, 4).permute(2, 0, 1).to(device))
show("channels last", torch.zeros(1, 2, 3, 4).to(device, memory_format=torch.channels_last))
show("index", torch.arange(3)[None, :].to(device))
show("filled", torch.empty(3).fill_(0.3).half().to(device))
show("list", torch.LongTensor([1, 2, 3]).to(device))
show("Tensor", torch.Tensor([[1, 2]]).long().to(device))
show("zeroed", torch.FloatTensor(2, 3).zero_().view(-1).to(device))
show("indices", torch.tril_indices(3, 3).to(device))
show("variable", Variable(torch.ones(3)).to(device))
show("gradient", torch.ones(3).to(device).requires_grad_())
x = torch.zeros(2)
x = x.to(device)
show("next statement", x)
"""


def rewritten(text: str) -> str:
    result = run_transform(RULE, text)
    assert result.outcome is Outcome.CHANGED
    return result.after.decode()


def test_rewritten_program_makes_the_same_tensors(tmp_path: Path) -> None:
    """Values, dtypes, strides and leaves are the same bit for bit on the GPU, and only given data is still copied to it."""
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(SCRIPT)
    after.write_text(rewritten(SCRIPT))
    assert "torch.zeros(2, 3).to" not in after.read_text()
    old, copies = run_on_fake_gpu(before)
    new, fewer = run_on_fake_gpu(after)
    assert new == old
    assert (copies["h2d"], fewer["h2d"]) == (24, 4)
    assert run_on_cpu(after) == run_on_cpu(before)


def test_random_program_is_the_same_without_a_gpu(tmp_path: Path) -> None:
    """Where there is no CUDA the random numbers are the host's, as before."""
    script = """
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(3)
    print(torch.rand(3).to(device).tolist(), torch.randperm(5).to(device).tolist(), torch.empty(2).normal_().to(device).tolist())
    print(torch.rand(2).double().to(device).tolist(), torch.rand(1).item())
    """
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(dedent(script))
    after.write_text(rewritten(script))
    assert run_on_cpu(after) == run_on_cpu(before)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("T = torch.cuda.FloatTensor if c else torch.FloatTensor\nT = other\nx = T(2, 3).fill_(1)", id="type changes"),
        pytest.param("T = torch.cuda.FloatTensor if c else torch.LongTensor\nx = T(2, 3).fill_(1)", id="types that are no twins"),
        pytest.param("T = torch.cuda.FloatTensor if c else torch.FloatTensor\nx = T(unknown)", id="sizes or data"),
    ],
)
def test_types_that_are_chosen_otherwise_are_no_concern(text: str) -> None:
    """What may mean something else at the place of the call is not spoken of."""
    check_noop(RULE, f"import torch\n{text}\n")


@pytest.mark.parametrize("call", ["T(n, 1).fill_(1.0)", "T([1, 2])"])
def test_a_type_that_is_chosen_once_is_held(call: str) -> None:
    """A variable that stands for CUDA's constructor or the host's loses no time, so only a person gains by another form."""
    check_held(RULE, f"import torch\n\nn = 2\nT = torch.cuda.FloatTensor if cuda else torch.FloatTensor\nx = {call}\n", "chosen-type")
