"""old-amp-spelling: which spellings stay, which are held and why, and that the new ones compute the same without a warning."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.running import run_on_cpu, run_on_fake_gpu
from torchfix.testing import check_held, check_noop, check_transformed, run_transform

RULE = "old-amp-spelling"
HEAD = "import torch\nfrom torch.cuda.amp import GradScaler, autocast, custom_bwd, custom_fwd\n\n"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('import torch\nwith torch.autocast("cuda"):\n    pass', id="torch.autocast"),
        pytest.param('import torch\nwith torch.amp.autocast("cuda", enabled=False):\n    pass', id="torch.amp"),
        pytest.param("from apex.amp import autocast\nautocast(False)", id="of another package"),
        pytest.param("from torch.cuda.amp import autocast\ndef f(autocast):\n    autocast(False)", id="a parameter of that name"),
        pytest.param("from torch.cuda.amp import autocast\nautocast = make()\nautocast()", id="bound anew"),
        pytest.param('"""\nwith torch.cuda.amp.autocast():\n"""', id="in a string"),
        pytest.param("from torch.cuda.amp import autocast", id="an import alone"),
        pytest.param("import torch\ntorch.cuda.amp.common.amp_definitely_not_available()", id="what is not deprecated"),
        pytest.param('import torch\ntorch.is_autocast_enabled()\ntorch.get_autocast_dtype("cuda")', id="getters of today"),
    ],
)
def test_other_spellings_stay(text: str) -> None:
    """What torch does not deprecate, and what is not torch's, is left alone."""
    check_noop(RULE, text)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param("class Own(GradScaler):\n    pass", "derived", id="trap 8: a subclass"),
        pytest.param("make = partial(autocast, enabled=False)", "handed-on", id="handed on"),
        pytest.param("context = autocast", "handed-on", id="under another name"),
        pytest.param("@autocast\ndef f(x):\n    return x", "handed-on", id="a class as a decorator"),
        pytest.param("kind = type(s) is GradScaler", "handed-on", id="compared"),
        pytest.param("autocast(*options)", "hidden-arguments", id="starred arguments"),
        pytest.param("GradScaler(*options)", "hidden-arguments", id="starred arguments of the scaler"),
        pytest.param("torch.set_autocast_dtype('cuda', d)\nautocast(**options)", "hidden-arguments", id="which may hold the dtype"),
        pytest.param("if torch.__version__ >= '2':\n    s = None\nelse:\n    s = GradScaler()", "version-guard", id="version"),
        pytest.param("s = GradScaler() if old else torch.amp.GradScaler()", "version-guard", id="either of two"),
        pytest.param("try:\n    s = GradScaler()\nexcept AttributeError:\n    s = None", "version-guard", id="tried"),
        pytest.param("@torch.jit.script\ndef f(x):\n    with autocast():\n        return x", "torchscript", id="trap 5: scripted"),
        pytest.param("s = GradScaler()\nif type(s) == GradScaler:\n    pass", "checked-elsewhere", id="made for a comparison"),
    ],
)
def test_held(text: str, code: str) -> None:
    """What would change its meaning, or who uses it, stays and says why."""
    assert check_held(RULE, HEAD + text, code).reason.help


def test_a_network_that_another_file_compiles_with_torchscript_is_held() -> None:
    """The class that TorchScript knows has a branch of its own for it."""
    model = """
    import torch
    from torch.cuda.amp import autocast

    class Net(torch.nn.Module):
        def forward(self, x):
            with autocast():
                return x
    """
    check_held(
        RULE, model, "torchscript", path="model.py", modules={"export.py": "import torch\nfrom model import Net\ntorch.jit.script(Net())\n"}
    )


def test_trap_7_an_import_that_is_tried_stays() -> None:
    """A program that runs without the old names too supports versions of torch that we do not know."""
    text = """
    try:
        from torch.cuda.amp import autocast
    except ImportError:
        class autocast:
            def __init__(self, enabled=True):
                pass

    with autocast(False):
        pass
    """
    check_noop(RULE, text)


def test_f88_the_probing_import_stays() -> None:
    """The import in ``try`` tells whether there is AMP at all; it is neither removed nor respelled."""
    text = """
    try:
        from torch.cuda.amp import autocast
        HAS_AMP = True
    except ImportError:
        HAS_AMP = False

    def f(net, x):
        if HAS_AMP:
            with autocast():
                return net(x)
        return net(x)
    """
    check_held(RULE, text, "version-guard")


@pytest.mark.parametrize(
    ("torch", "text", "written"),
    [
        pytest.param((1, 9), "c = autocast()", None, id="autocast before 1.10"),
        pytest.param((1, 10), "c = autocast()", 'c = torch.autocast("cuda")', id="autocast since 1.10"),
        pytest.param((2, 2), "s = GradScaler()", None, id="scaler before 2.3"),
        pytest.param((2, 3), "s = GradScaler()", 's = torch.amp.GradScaler("cuda")', id="scaler since 2.3"),
        pytest.param((2, 3), "@custom_bwd\ndef b(c, g): pass", None, id="decorators before 2.4"),
        pytest.param(
            (2, 4), "@custom_bwd\ndef b(c, g): pass", '@torch.amp.custom_bwd(device_type="cuda")\ndef b(c, g): pass', id="since 2.4"
        ),
        pytest.param((2, 3), "d = torch.get_autocast_gpu_dtype()", None, id="getters before 2.4"),
        pytest.param((2, 4), "d = torch.get_autocast_gpu_dtype()", 'd = torch.get_autocast_dtype("cuda")', id="getters since 2.4"),
    ],
)
def test_the_oldest_torch_decides(torch: tuple[int, int], text: str, written: str | None) -> None:
    """No spelling is written that the oldest torch which the project declares does not know."""
    if written is None:
        check_held(RULE, HEAD + text, "torch-too-old", torch=torch)
    else:
        result = run_transform(RULE, HEAD + text, torch=torch)
        assert written in result.after.decode()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("c = autocast(False)", 'c = torch.autocast("cuda", enabled=False)', id="trap 1: enabled by position"),
        pytest.param(
            "c = autocast(on, torch.float16, False)",
            'c = torch.autocast("cuda", enabled=on, dtype=torch.float16, cache_enabled=False)',
            id="trap 1: all by position",
        ),
        pytest.param("c = autocast(enabled=on)", 'c = torch.autocast("cuda", enabled=on)', id="by keyword"),
        pytest.param("c = autocast(**options)", 'c = torch.autocast("cuda", **options)', id="keywords of elsewhere"),
        pytest.param("s = GradScaler(1024.0)", 's = torch.amp.GradScaler("cuda", init_scale=1024.0)', id="scaler by position"),
        pytest.param("@autocast()\ndef f(x): pass", '@torch.autocast("cuda")\ndef f(x): pass', id="trap 4: decorator"),
        pytest.param("@custom_fwd\ndef f(c): pass", '@torch.amp.custom_fwd(device_type="cuda")\ndef f(c): pass', id="trap 3: bare"),
        pytest.param(
            "@custom_fwd(cast_inputs=torch.float32)\ndef f(c): pass",
            '@torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)\ndef f(c): pass',
            id="trap 3: called",
        ),
        pytest.param("f = custom_fwd(g)", 'f = torch.amp.custom_fwd(g, device_type="cuda")', id="applied by hand"),
        pytest.param("def f(s: GradScaler): pass", "def f(s: torch.amp.GradScaler): pass", id="annotation"),
        pytest.param("ok = isinstance(s, (int, GradScaler))", "ok = isinstance(s, (int, torch.amp.GradScaler))", id="trap 2: check"),
        pytest.param("torch.set_autocast_gpu_dtype(d)", 'torch.set_autocast_dtype("cuda", d)', id="setter"),
        pytest.param("ok = torch.is_autocast_cpu_enabled()", 'ok = torch.is_autocast_enabled("cpu")', id="CPU getter"),
    ],
)
def test_rewritten(before: str, after: str) -> None:
    """Every argument of today is named, and the imports that served the old spelling go with it."""
    words = ("GradScaler", "autocast", "custom_bwd", "custom_fwd")
    used = [word for word in words if f" {word}" in f" {before}".replace("@", " ").replace("(", " ")]
    imported = f"from torch.cuda.amp import {', '.join(used)}\n" if used else ""
    (note, *_) = check_transformed(RULE, f"import torch\n{imported}\n{before}\n", f"import torch\n\n{after}\n")
    assert note.risk == "exact"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            "from torch.cuda.amp import GradScaler\n\ns = GradScaler()\n",
            'import torch\n\ns = torch.amp.GradScaler("cuda")\n',
            id="F93: bare, no torch",
        ),
        pytest.param(
            "import torch as th\nfrom torch.cuda.amp import GradScaler as Scaler\n\ns = Scaler()\n",
            'import torch as th\n\ns = th.amp.GradScaler("cuda")\n',
            id="F93: aliased",
        ),
        pytest.param(
            "import torch\nfrom torch.cuda import amp\n\ns = amp.GradScaler()\nwith amp.autocast(False):\n    pass\n",
            'import torch\n\ns = torch.amp.GradScaler("cuda")\nwith torch.autocast("cuda", enabled=False):\n    pass\n',
            id="trap 6: the module",
        ),
        pytest.param(
            "import torch\nimport torch.cuda.amp as amp\n\nwith amp.autocast():\n    pass\n",
            'import torch\n\nwith torch.autocast("cuda"):\n    pass\n',
            id="trap 6: the module, aliased",
        ),
        pytest.param(
            "import torch\n\nwith torch.cpu.amp.autocast():\n    pass\n",
            'import torch\n\nwith torch.autocast("cpu"):\n    pass\n',
            id="CPU",
        ),
        pytest.param(
            "from torch import amp\nimport torch.cuda.amp as old\n\ns = old.GradScaler()\n",
            'from torch import amp\n\ns = amp.GradScaler("cuda")\n',
            id="as the file spells torch.amp",
        ),
    ],
)
def test_imports_are_those_that_the_file_needs(before: str, after: str) -> None:
    """The new name is written as the file writes torch's names, and only imports that the rewrite left unused go."""
    check_transformed(RULE, before, after)


def test_what_is_held_keeps_its_import() -> None:
    """Of an import of several names only those go that nothing uses any more."""
    before = """
    import torch
    from torch.cuda.amp import GradScaler, autocast

    class Own(GradScaler):
        pass

    with autocast():
        pass
    """
    after = """
    import torch
    from torch.cuda.amp import GradScaler

    class Own(GradScaler):
        pass

    with torch.autocast("cuda"):
        pass
    """
    check_transformed(RULE, before, after)


def test_an_import_inside_a_function_is_written_anew() -> None:
    """An import that serves one use brings the new name; one that serves more stays where it is."""
    before = """
    def f(net, x):
        from torch.cuda.amp import autocast
        with autocast(False):
            return net(x)
    """
    after = """
    def f(net, x):
        from torch import autocast
        with autocast("cuda", enabled=False):
            return net(x)
    """
    check_transformed(RULE, before, after)


def test_an_import_under_a_condition_that_another_file_takes_from_here_stays() -> None:
    """What the other file calls is the old class still."""
    text = "import torch\nif torch.cuda.is_available():\n    from torch.cuda.amp import autocast\n\ndef f():\n    return autocast()\n"
    after = text.replace("return autocast()", 'return torch.autocast("cuda")')
    check_transformed(RULE, text, after, path="model.py", modules={"train.py": "from model import autocast\n\nautocast(False)\n"})


def test_trap_2_checks_change_with_what_they_check() -> None:
    """An object of the new class is none of the old one, so that a check left behind would deny it."""
    before = """
    import torch
    from torch.cuda.amp import GradScaler

    scaler = GradScaler()
    print(isinstance(scaler, GradScaler))
    """
    after = """
    import torch

    scaler = torch.amp.GradScaler("cuda")
    print(isinstance(scaler, torch.amp.GradScaler))
    """
    check_transformed(RULE, before, after)


def test_trap_2_a_check_in_another_file_holds_the_scaler() -> None:
    """Each file is changed for itself, and the check would fail until its own is."""
    trainer = "import torch\nfrom torch.cuda.amp import GradScaler\n\ndef step(scaler):\n    return isinstance(scaler, GradScaler)\n"
    script = "import torch\nfrom trainer import step\n\nstep(torch.cuda.amp.GradScaler())\n"
    note = check_held(RULE, script, "checked-elsewhere", modules={"trainer.py": trainer})
    assert note.reason is not None and note.reason.text.startswith("trainer.py:5 ")
    assert run_transform(RULE, trainer, path="trainer.py", modules={"train.py": script}).after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("torch.set_autocast_dtype('cuda', d)", '"cuda", dtype=torch.float16', id="set for the thread"),
        pytest.param("with torch.autocast('cuda', dtype=torch.bfloat16):\n    pass", '"cuda", dtype=torch.float16', id="set around it"),
        pytest.param("with torch.autocast('cuda', cache_enabled=False):\n    pass", '"cuda", cache_enabled=True', id="the cache"),
        pytest.param("from accelerate import Accelerator", '"cuda", dtype=torch.float16', id="by a framework"),
    ],
)
def test_trap_9_what_the_old_class_fixed_is_written_out(before: str, after: str) -> None:
    """The new class takes its dtype and its cache from what surrounds it, which the old one never did."""
    text = f"import torch\n{before}\nwith torch.cuda.amp.autocast():\n    pass\n"
    check_transformed(RULE, text, text.replace("torch.cuda.amp.autocast()", f"torch.autocast({after})"))


def test_trap_9_another_file_of_the_program_counts() -> None:
    """The region around this one may be opened in the file that calls it."""
    caller = "import torch\nfrom model import f\n\nwith torch.autocast('cuda', dtype=torch.bfloat16):\n    f()\n"
    text = "import torch\n\ndef f():\n    with torch.cuda.amp.autocast():\n        pass\n"
    after = text.replace("torch.cuda.amp.autocast()", 'torch.autocast("cuda", dtype=torch.float16)')
    check_transformed(RULE, text, after, path="model.py", modules={"train.py": caller})


def test_amp_loop_and_this_rule_leave_each_other_alone() -> None:
    """What amp-loop writes is no old spelling, and what this rule writes is seen as mixed precision."""
    plain = """
    import torch

    model = torch.nn.Linear(4, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(torch.ones(2, 4).cuda()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    """
    mixed = run_transform("amp-loop", plain).after
    assert b"GradScaler" in mixed
    check_noop(RULE, mixed.decode())
    old = """
    import torch

    model = torch.nn.Linear(4, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.cuda.amp.GradScaler()
    for _ in range(3):
        with torch.cuda.amp.autocast():
            loss = model(torch.ones(2, 4).cuda()).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    check_noop("amp-loop", run_transform(RULE, old).after.decode())


TRAINING = """
import torch
from torch.cuda.amp import GradScaler, autocast, custom_bwd, custom_fwd


class Double(torch.autograd.Function):
    @staticmethod
    @custom_fwd(cast_inputs=torch.float32)
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    @custom_bwd
    def backward(ctx, grad):
        return 2 * grad


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = GradScaler(1024.0)
for step in range(6):
    with autocast(step % 2 == 0):
        hidden = model(torch.ones(2, 4, device=device) * step)
        out = Double.apply(hidden)
        loss = out.float().pow(2).mean()
    with torch.cpu.amp.autocast():
        low = torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(loss.item(), hidden.dtype, out.dtype, low, scaler.get_scale(), isinstance(scaler, GradScaler))
"""


def test_the_rewritten_program_computes_the_same_without_a_warning(tmp_path: Path) -> None:
    """On the CPU every number is the same, and the deprecation warnings are gone."""
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(TRAINING)
    after.write_bytes(run_transform(RULE, TRAINING).after)
    assert run_on_cpu(before) == run_on_cpu(after)
    strict = [sys.executable, "-W", "error::FutureWarning", str(before)]
    assert "FutureWarning" in subprocess.run(strict, capture_output=True, text=True, timeout=60, check=False).stderr
    strict[-1] = str(after)
    assert subprocess.run(strict, capture_output=True, text=True, timeout=60, check=False).returncode == 0


def test_the_rewritten_program_computes_the_same_on_the_gpu(tmp_path: Path) -> None:
    """On the pretend GPU, where autocast and the scaler are at work, every number is the same."""
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(TRAINING)
    after.write_bytes(run_transform(RULE, TRAINING).after)
    printed, counts = run_on_fake_gpu(before)
    again, counts_after = run_on_fake_gpu(after)
    assert "torch.float16" in printed
    assert (again, counts_after["sync"]) == (printed, counts["sync"])


def test_the_new_classes_are_told_the_same(tmp_path: Path) -> None:
    """Every old call and its rewriting make objects with the same state."""
    calls = [
        "autocast(False)",
        "autocast(True, torch.bfloat16)",
        "autocast(True, torch.float16, False)",
        "GradScaler(8.0, 4.0, 0.25, 7, False)",
    ]
    text = dedent("""
    import torch
    from torch.cuda.amp import GradScaler, autocast

    def state(made):
        return sorted((name, value) for name, value in vars(made).items() if isinstance(value, (int, float, str, torch.dtype)))

    """)
    text += "".join(f"print(state({call}))\n" for call in calls)
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(text)
    after.write_bytes(run_transform(RULE, text).after)
    assert b"torch.cuda.amp" not in after.read_bytes()
    assert run_on_cpu(before) == run_on_cpu(after)
