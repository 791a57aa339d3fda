"""apex-amp: which uses of Apex are held and why, which become torch's own, and that programs train alike before and after."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

import pytest

from tests.running import run_on_cpu, run_on_fake_gpu
from torchfix import registry
from torchfix.engine import EngineSettings, fix
from torchfix.facts.project.project import Project
from torchfix.result import Outcome
from torchfix.testing import check_held, check_noop, check_program, check_transformed, run_on_program, run_transform
from torchfix.transform import Selected

RULE = "apex-amp"
APEX = """\
import contextlib

SCALE = 2.0**16
calls = []


def initialize(models, optimizers=None, enabled=True, opt_level="O1", loss_scale="dynamic", num_losses=1, verbosity=1):
    calls.append("initialize")
    return models if optimizers is None else (models, optimizers)


@contextlib.contextmanager
def scale_loss(loss, optimizers, loss_id=0, model=None, delay_unscale=False):
    assert calls, "Invoked 'with amp.scale_loss', but internal Amp state has not been initialized."
    listed = optimizers if isinstance(optimizers, list) else [optimizers]
    stashed = {parameter: parameter.grad for optimizer in listed for parameter in master_params(optimizer)}
    for parameter in stashed:
        parameter.grad = None
    yield loss * SCALE
    for parameter, old in stashed.items():
        if parameter.grad is not None:
            parameter.grad = parameter.grad / SCALE if old is None else old + parameter.grad / SCALE


def master_params(optimizer):
    for group in optimizer.param_groups:
        yield from group["params"]
"""
"""A stand-in for the package: it scales by a power of two, which float32 bears to the last bit, and computes in float32."""
NETWORK = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x):
        return self.layers(x)
"""
INITIALIZE = 'model, optimizer = amp.initialize(model, optimizer, opt_level="O1")\n'
STEP = """\
optimizer.zero_grad()
loss = criterion(model(x), y)
with amp.scale_loss(loss, optimizer) as scaled_loss:
    scaled_loss.backward()
optimizer.step()
"""
AFTER = """\
optimizer.zero_grad()
with torch.autocast("cuda", dtype=torch.float16):
    loss = criterion(model(x), y)
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
"""
SCALER = 'scaler = torch.amp.GradScaler("cuda")\n'
GUARDED = """\
optimizer.zero_grad()
loss = criterion(model(x), y)
if fp16:
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
else:
    loss.backward()
optimizer.step()
"""
GUARDED_SET_UP = 'fp16 = True\nif fp16:\n    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")\n'
GUARDED_SCALER = 'fp16 = True\nscaler = torch.amp.GradScaler("cuda", enabled=fp16)\n'
GUARDED_REGION = 'with torch.autocast("cuda", dtype=torch.float16, enabled=scaler.is_enabled()):'
GUARDED_AFTER = AFTER.replace('with torch.autocast("cuda", dtype=torch.float16):', GUARDED_REGION)


def program(step: str = STEP, set_up: str = INITIALIZE, *, imports: str = "from apex import amp\n", head: str = "") -> str:
    """A whole training script, which prints the loss of each batch and the weights' sum with every digit."""
    return f"""\
import torch
{imports}from torch import nn

{head}device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


{NETWORK}

def batches():
    generator = torch.Generator().manual_seed(5)
    for _ in range(8):
        yield torch.randn(4, 8, generator=generator), torch.randint(0, 3, (4,), generator=generator)


torch.manual_seed(3)
model = Net().to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{set_up}for i, (x, y) in enumerate(batches()):
    x, y = x.to(device), y.to(device)
{indent(step, "    ")}    print(repr(loss.item()))
print(repr(sum(parameter.sum().item() for parameter in model.parameters())))
"""


def changed(step: str, after: str, set_up: str = INITIALIZE, after_set_up: str = SCALER, **arguments: str) -> None:
    """Check one iteration's statements and what stands in front of the loop; the import of Apex goes."""
    before = program(dedent(step), dedent(set_up), **arguments)
    check_transformed(RULE, before, program(dedent(after), dedent(after_set_up), **{**arguments, "imports": ""}))


# What stays ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "modules"),
    [
        pytest.param(program(AFTER, SCALER, imports=""), {}, id="torch's own mixed precision"),
        pytest.param("from apex import amp\namp.initialize(m, o)\n", {"apex.py": "amp = None\n"}, id="a module of the project"),
        pytest.param("from apex.contrib.xentropy import SoftmaxCrossEntropyLoss\nSoftmaxCrossEntropyLoss()", {}, id="something else"),
        pytest.param(
            "try:\n    from apex.normalization import FusedLayerNorm as N\nexcept ImportError:\n    from torch.nn import LayerNorm as N\n"
            "N(8)\n",
            {},
            id="a choice of the program's own",
        ),
        pytest.param("def f(amp):\n    with amp.scale_loss(loss, o) as s:\n        s.backward()\n", {}, id="a parameter of that name"),
    ],
)
def test_leaves_what_is_not_apex(text: str, modules: dict[str, str]) -> None:
    """Only what an import of the package brings is Apex."""
    check_noop(RULE, text, modules=modules)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        pytest.param("apex-level", program(set_up=INITIALIZE.replace("O1", "O2")), id="O2: the weights are half"),
        pytest.param("apex-level", program(set_up=INITIALIZE.replace("O1", "O3")), id="O3: all is half"),
        pytest.param("apex-level", program(set_up=INITIALIZE.replace('"O1"', "config['level']")), id="a level out of a file"),
        pytest.param("apex-arguments", program(set_up=INITIALIZE.replace('opt_level="O1"', "**options")), id="hidden arguments"),
        pytest.param(
            "apex-arguments", program(set_up=INITIALIZE.replace('opt_level="O1"', "master_weights=True")), id="master weights asked for"
        ),
        pytest.param("loss-scale", program(set_up=INITIALIZE.replace(")", ", loss_scale=scale)")), id="a loss scale out of sight"),
        pytest.param("apex-use", program(set_up="amp.register_half_function(torch, 'exp')\n" + INITIALIZE), id="registered otherwise"),
        pytest.param("apex-use", program(set_up="amp.register_float_function(torch, 'sigmoid')\n" + INITIALIZE), id="registered functions"),
        pytest.param("apex-use", program(set_up="helper(amp)\n" + INITIALIZE), id="handed on"),
        pytest.param("apex-initialized", program(set_up=""), id="never initialized"),
        pytest.param("apex-initialized", program(set_up=INITIALIZE * 2), id="initialized twice"),
        pytest.param("apex-unused", program("loss = criterion(model(x), y)\n"), id="nothing is scaled"),
        pytest.param("step-elsewhere", program(STEP.replace("optimizer.step()\n", "learn()\n")), id="the step stands elsewhere"),
        pytest.param("step-elsewhere", program(set_up=INITIALIZE + "optimizer.step()\n"), id="a step without a loss"),
        pytest.param(
            "apex-form",
            program(STEP.replace("d_loss.backward()\n", "d_loss.backward()\n    clip(amp.master_params(optimizer))\n")),
            id="gradients are clipped while they are scaled",
        ),
        pytest.param(
            "double-backward",
            program(STEP.replace("with", "loss = loss + torch.autograd.grad(loss, x, create_graph=True)[0].norm()\nwith")),
            id="a gradient penalty",
        ),
        pytest.param("apex-use", program(STEP + "print(optimizer._amp_stash)\n"), id="Apex's own books"),
        pytest.param(
            "conditional-backward", program(STEP.replace("with", "if i:\n  with").replace("    s", "      s")), id="a step without a loss"
        ),
        pytest.param(
            "conditional-backward",
            program(
                "critic.requires_grad_(i % 2 == 0)\nother.zero_grad()\n"
                + STEP.replace("model(x)", "model(x) + critic(x)").replace("(loss, optimizer)", "(loss, [optimizer, other])")
                + "other.step()\n",
                "critic = Net().to(device)\nother = torch.optim.Adam(critic.parameters())\n"
                "(model, critic), (optimizer, other) = amp.initialize((model, critic), (optimizer, other))\n",
            ),
            id="a network that is frozen at times",
        ),
        pytest.param("closure", program(STEP.replace("step()", "step(closure)")), id="a closure"),
        pytest.param("apex-form", program(STEP.replace("    scaled_loss.backward()", "    send(scaled_loss)")), id="sent by a function"),
        pytest.param("apex-form", program(STEP + "print(scaled_loss)\n"), id="the scaled loss is used again"),
        pytest.param("unscaled-backward", program(STEP.replace("optimizer.step", "extra.backward()\noptimizer.step")), id="a plain loss"),
        pytest.param(
            "unscaled-backward",
            program(GUARDED.replace("if fp16:", "if other:").replace("else:\n", "else:\n    print(i)\n"), GUARDED_SET_UP),
            id="branches that another condition chooses",
        ),
        pytest.param(
            "skipped-update",
            program(
                STEP.replace(
                    "optimizer.step", "n = nn.utils.clip_grad_norm_(model.parameters(), 1)\nif n != n:\n    continue\noptimizer.step"
                )
            ),
            id="an iteration that ends before the step",
        ),
        pytest.param("gradients-kept", program(STEP.replace("optimizer.zero_grad()\n", "")), id="gradients are never cleared"),
        pytest.param(
            "gradients-read-elsewhere",
            program(
                STEP.replace(
                    "optimizer.step()",
                    "nn.utils.clip_grad_norm_(model.parameters(), 1.0)\nif i % 2:\n    optimizer.step()\n    optimizer.zero_grad()",
                ).replace("optimizer.zero_grad()\nloss", "loss", 1)
            ),
            id="clipped more often than stepped",
        ),
        pytest.param(
            "several-optimizers",
            program(
                STEP.replace("(loss, optimizer)", "(loss, [optimizer, other])").replace(
                    "optimizer.step()", "if i:\n    optimizer.step()\nif not i:\n    other.step()"
                )
            ),
            id="optimizers that step now and then",
        ),
        pytest.param(
            "gradients-read-elsewhere",
            program(
                "for part in x.split(2):\n    loss = model(part).sum()\n"
                "    with amp.scale_loss(loss, optimizer) as s:\n        s.backward()\n"
                "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\noptimizer.step()\noptimizer.zero_grad()\n"
            ),
            id="clipped with each part of a batch",
        ),
        pytest.param("optimizer-elsewhere", program(set_up=f"for _ in [0]:\n    {INITIALIZE}"), id="initialized in a loop"),
    ],
)
def test_held(code: str, text: str) -> None:
    """What torch has no twin of, or what is out of sight, stays and says why."""
    assert check_held(RULE, text, code).reason.help  # type: ignore[union-attr]


def test_held_where_the_project_allows_torch_without_mixed_precision() -> None:
    """Torch has its own since 1.6."""
    check_held(RULE, program(), "torch-too-old", torch=(1, 5))


ENGINE = """\
import torch
from apex import amp


def train(model, optimizer, batches):
    for x in batches:
        optimizer.zero_grad()
        loss = model(x.cuda()).sum()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
"""
SCRIPT = """\
import torch
from apex import amp
from engine import train

model = torch.nn.Linear(8, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer)
train(model, optimizer, make())
"""


@pytest.mark.parametrize(
    ("code", "others"),
    [
        pytest.param("apex-elsewhere", {"other.py": SCRIPT}, id="two scripts that share what trains"),
        pytest.param("apex-elsewhere", {"run.py": "import train\nfrom apex import amp\namp.state_dict()\n"}, id="a script above it"),
    ],
)
def test_held_where_files_share_apex(code: str, others: dict[str, str]) -> None:
    """Apex is one for the whole program; all of its files must change together."""
    files = {"train.py": SCRIPT, "engine.py": ENGINE, **others}
    results = run_on_program(RULE, files)
    assert {result.outcome for result in results.values()} == {Outcome.CLEAN}
    assert code in {note.reason.code for result in results.values() for note in result.notes if note.reason is not None}


def test_every_use_is_a_finding_and_all_of_them_are_one_change() -> None:
    """The import, what initializes Apex, each loss, and each list of parameters: a suppression or a report finds them all."""
    text = program(STEP.replace("optimizer.step()", "nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)\noptimizer.step()"))
    notes = run_transform(RULE, text).notes
    lines = [text.splitlines()[note.line - 1].strip() for note in notes]
    assert [line.partition("(")[0] for line in lines] == [
        "from apex import amp",
        "model, optimizer = amp.initialize",
        "with amp.scale_loss",
        "nn.utils.clip_grad_norm_",
    ]
    assert {note.outcome for note in notes} == {"fixed"}
    assert {effect for note in notes for effect in note.effects} == {"numerics"}


# What changes --------------------------------------------------------------------------------------------------------


def test_a_plain_loop() -> None:
    """The import and the call go, a scaler stands in their place, and the forward pass runs under autocast."""
    changed(STEP, AFTER)


@pytest.mark.parametrize("level", ["", ', opt_level="O1"', ", True", ', loss_scale="dynamic", verbosity=0', ", keep_batchnorm_fp32=None"])
def test_level_o1_and_whatever_says_the_same(level: str) -> None:
    """O1 is what Apex does where nothing is said."""
    changed(STEP, AFTER, f"model, optimizer = amp.initialize(model, optimizer{level})\n")


@pytest.mark.parametrize(
    ("imports", "initialize"),
    [
        ("from apex import amp as mixed\n", "mixed"),
        ("import apex\n", "apex.amp"),
        ("import apex.amp\n", "apex.amp"),
        ("try:\n    from apex import amp\nexcept ImportError:\n    raise ImportError('install apex')\n", "amp"),
        ("try:\n    from apex import amp\nexcept ImportError:\n    amp = None\n", "amp"),
        ("try:\n    import apex\nexcept ImportError:\n    pass\n", "apex.amp"),
    ],
)
def test_ways_to_import_apex(imports: str, initialize: str) -> None:
    """An import that may fail goes too, with what stands in for it."""
    changed(STEP.replace("amp.", f"{initialize}."), AFTER, INITIALIZE.replace("amp.", f"{initialize}."), imports=imports)


def test_a_static_scale_never_grows() -> None:
    """A number is where the scale begins, and no row of good steps is long enough to raise it."""
    after = 'scaler = torch.amp.GradScaler("cuda", init_scale=128.0, growth_interval=10**9)\n'
    for scale in ("128", '"128.0"'):
        changed(STEP, AFTER, INITIALIZE.replace(")", f", loss_scale={scale})"), after)


@pytest.mark.parametrize(
    ("torch", "scaler", "region"),
    [
        ((1, 6), "torch.cuda.amp.GradScaler(enabled=fp16)", "torch.cuda.amp.autocast(enabled=scaler.is_enabled())"),
        ((1, 10), "torch.cuda.amp.GradScaler(enabled=fp16)", 'torch.autocast("cuda", dtype=torch.float16, enabled=scaler.is_enabled())'),
        ((2, 3), 'torch.amp.GradScaler("cuda", enabled=fp16)', 'torch.autocast("cuda", dtype=torch.float16, enabled=scaler.is_enabled())'),
    ],
)
def test_spelling_of_the_oldest_torch(torch: tuple[int, int], scaler: str, region: str) -> None:
    """Scaler and autocast are written as the oldest torch of the project knows them."""
    after = program(GUARDED_AFTER.replace(GUARDED_REGION, f"with {region}:"), f"fp16 = True\nscaler = {scaler}\n", imports="")
    check_transformed(RULE, program(GUARDED, GUARDED_SET_UP), after, torch=torch)


def test_branches_with_apex_and_without_become_one() -> None:
    """One switch is left, in the scaler."""
    changed(GUARDED, GUARDED_AFTER, GUARDED_SET_UP, GUARDED_SCALER)


def test_a_local_import_under_the_switch_goes_with_it() -> None:
    """So it is written where Apex is wanted only on demand, complaint included."""
    set_up = """\
        fp16 = True
        if fp16:
            try:
                from apex import amp
            except ImportError:
                raise ImportError("Please install apex")
            model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
        """
    changed(GUARDED, GUARDED_AFTER, set_up, GUARDED_SCALER, imports="")


def test_what_else_is_done_under_the_switch_stays() -> None:
    """Only what is Apex's goes."""
    set_up = GUARDED_SET_UP + '    print("mixed precision")\n'
    after = 'fp16 = True\nif fp16:\n    print("mixed precision")\nscaler = torch.amp.GradScaler("cuda", enabled=fp16)\n'
    changed(GUARDED, GUARDED_AFTER, set_up, after)


def test_a_comment_in_a_branch_is_not_lost() -> None:
    """The branches stay where a comment would go; both ask for the same condition."""
    step = GUARDED.replace("if fp16:\n", "if fp16:\n    # half precision\n")
    after = GUARDED_AFTER.replace(
        "scaler.scale(loss).backward()",
        "if fp16:\n    # half precision\n    scaler.scale(loss).backward()\nelse:\n    loss.backward()",
    )
    changed(step, after, GUARDED_SET_UP, GUARDED_SCALER)


def test_branches_that_compute_the_loss_themselves_stay_two() -> None:
    """Only the one with Apex computes under autocast."""
    step = """\
        optimizer.zero_grad()
        if fp16:
            loss = criterion(model(x), y)
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            loss = criterion(model(x), y) * 2
            loss.backward()
        optimizer.step()
        """
    after = """\
        optimizer.zero_grad()
        if fp16:
            with torch.autocast("cuda", dtype=torch.float16, enabled=scaler.is_enabled()):
                loss = criterion(model(x), y)
            scaler.scale(loss).backward()
        else:
            loss = criterion(model(x), y) * 2
            loss.backward()
        scaler.step(optimizer)
        scaler.update()
        """
    changed(step, after, GUARDED_SET_UP, GUARDED_SCALER)


def test_branches_that_both_ask_apex_stay_two() -> None:
    """Each of them clips the optimizer's own parameters."""
    step = """\
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        if fp16:
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
        else:
            loss.backward()
            nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
        optimizer.step()
        """
    branches = """\
if fp16:
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
else:
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step"""
    changed(step, GUARDED_AFTER.replace("scaler.scale(loss).backward()\nscaler.step", branches), GUARDED_SET_UP, GUARDED_SCALER)


def test_an_option_for_the_level_still_switches_mixed_precision_off() -> None:
    """O0 meant float32; the other levels are said to compute as O1 did."""
    head = """\
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--fp16", action="store_true")
parser.add_argument("--fp16-scale")
parser.add_argument("--opt-level", default="O1")
args = parser.parse_args()
"""
    set_up = "if args.fp16:\n    model, optimizer = amp.initialize(model, optimizer, opt_level=args.opt_level)\n"
    after = 'scaler = torch.amp.GradScaler("cuda", enabled=args.fp16 and args.opt_level != "O0")\n'
    changed(GUARDED.replace("fp16", "args.fp16"), GUARDED_AFTER, set_up, after, head=head)
    note = run_transform(RULE, program(GUARDED.replace("fp16", "args.fp16"), set_up, head=head)).notes[0]
    assert any("args.opt_level" in words for words in note.notes)


def test_a_switch_that_may_be_no_truth_value_is_made_one() -> None:
    """``torch.autocast`` takes nothing but True and False, and a configuration may hold 1."""
    after = 'scaler = torch.amp.GradScaler("cuda", enabled=bool(config["fp16"]))\n'
    guarded = GUARDED.replace("fp16", 'config["fp16"]')
    set_up = GUARDED_SET_UP.replace("fp16 = True\n", "").replace("fp16", 'config["fp16"]')
    changed(guarded, GUARDED_AFTER, set_up, after, head="config = load()\n")


def test_enabled_may_be_an_argument() -> None:
    """It says the same as a branch around the call."""
    changed(
        STEP,
        GUARDED_AFTER,
        'model, optimizer = amp.initialize(model, optimizer, enabled=wanted == "yes")\n',
        'scaler = torch.amp.GradScaler("cuda", enabled=wanted == "yes")\n',
    )


def test_other_names_for_what_apex_returns_stay() -> None:
    """Apex returns what it is given."""
    changed(
        STEP.replace("model(x)", "network(x)"),
        AFTER.replace("model(x)", "network(x)"),
        "network, optimizer = amp.initialize(model, optimizer)\n",
        'network, optimizer = model, optimizer\nscaler = torch.amp.GradScaler("cuda")\n',
    )


def test_a_complaint_that_apex_is_missing_goes() -> None:
    """With the import that may fail, and the switch in front of it."""
    imports = "try:\n    from apex import amp\nexcept ImportError:\n    amp = None\n"
    complaint = 'if fp16 and amp is None:\n    raise RuntimeError("install apex")\n'
    set_up = GUARDED_SET_UP.replace("fp16 = True\n", f"fp16 = True\n{complaint}")
    changed(GUARDED, GUARDED_AFTER, set_up, GUARDED_SCALER, imports=imports)


def test_other_names_of_the_same_import_stay() -> None:
    """Only Apex's mixed precision goes from it."""
    before = program(imports="try:\n    from apex import amp, parallel\nexcept ImportError:\n    raise\n")
    after = program(AFTER, SCALER, imports="try:\n    from apex import parallel\nexcept ImportError:\n    raise\n")
    check_transformed(RULE, before, after)


def test_what_apex_is_told_and_autocast_knows_goes() -> None:
    """Scripts for transformers told Apex that an einsum is a product of matrices."""
    told = """\
if fp16:
    try:
        import apex
        apex.amp.register_half_function(torch, "einsum")
    except ImportError:
        raise
"""
    changed(GUARDED, GUARDED_AFTER, GUARDED_SET_UP.replace("if fp16", told + "if fp16"), GUARDED_SCALER)


def test_branches_in_the_other_order_become_one() -> None:
    """The one without Apex may come first."""
    step = """\
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        if not fp16:
            loss.backward()
        else:
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
        optimizer.step()
        """
    changed(step, GUARDED_AFTER, GUARDED_SET_UP, GUARDED_SCALER)


# Gradients -----------------------------------------------------------------------------------------------------------


def test_gradients_are_unscaled_before_they_are_clipped() -> None:
    """The optimizer's own parameters are clipped, as they were."""
    changed(
        STEP.replace("optimizer.step()", "nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)\noptimizer.step()"),
        AFTER.replace("scaler.step", "scaler.unscale_(optimizer)\nnn.utils.clip_grad_norm_(model.parameters(), 1.0)\nscaler.step"),
    )


def test_branches_that_clip_with_apex_and_without_become_one() -> None:
    """The branch without Apex says whose gradients are clipped."""
    clip = """\
if fp16:
    norm = nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
else:
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
optimizer.step()"""
    after = "scaler.unscale_(optimizer)\nnorm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)\nscaler.step"
    changed(GUARDED.replace("optimizer.step()", clip), GUARDED_AFTER.replace("scaler.step", after), GUARDED_SET_UP, GUARDED_SCALER)


def test_clipping_inside_the_branches() -> None:
    """Backward pass and clipping share a branch; true size comes in between."""
    step = """\
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        if fp16:
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
        else:
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        """
    after = "scaler.unscale_(optimizer)\ntorch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\nscaler.step"
    changed(step, GUARDED_AFTER.replace("scaler.step", after), GUARDED_SET_UP, GUARDED_SCALER)


def test_gradients_that_are_read_behind_the_step_have_their_true_size_too() -> None:
    """A fused optimizer unscales inside of its kernel, and leaves them as they were."""
    log = "print(model.layers[0].weight.grad.norm())\n"
    changed(STEP + log, AFTER.replace("scaler.step", "scaler.unscale_(optimizer)\nscaler.step") + log)


def test_accumulated_gradients_step_and_clip_in_their_own_branch() -> None:
    """The scale changes only behind the step."""
    step = """\
        loss = criterion(model(x), y) / 2
        with amp.scale_loss(loss, optimizer, delay_unscale=i % 2 == 0) as scaled_loss:
            scaled_loss.backward(retain_graph=False)
        if i % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        """
    after = """\
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(x), y) / 2
        scaler.scale(loss).backward(retain_graph=False)
        if i % 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        """
    changed(step, after)


def test_parameters_of_an_optimizer_that_is_made_elsewhere() -> None:
    """They are those in its groups."""
    head = "from optimizers import make\n\n"
    before = program(
        STEP.replace("optimizer.step()", "nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)\noptimizer.step()"), head=head
    ).replace("torch.optim.SGD(model.parameters(), lr=0.1)", "make(model)")
    after = run_transform(RULE, before).after.decode()
    assert 'clip_grad_norm_((param for group in optimizer.param_groups for param in group["params"]), 1.0)' in after


# Where the scaler goes -----------------------------------------------------------------------------------------------


def test_the_scaler_is_handed_on_with_the_optimizer() -> None:
    """A function that trains gets it as its last parameter."""
    before = """\
import torch
from apex import amp
from torch import nn


def train(model, optimizer, batches, fp16):
    for x in batches:
        optimizer.zero_grad()
        loss = model(x.cuda()).sum()
        if fp16:
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            loss.backward()
        optimizer.step()


def main(args):
    model = nn.Linear(8, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if args.fp16:
        model, optimizer = amp.initialize(model, optimizer)
    train(model, optimizer, make(), args.fp16)
"""
    after = """\
import torch
from torch import nn


def train(model, optimizer, batches, fp16, scaler):
    for x in batches:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16, enabled=scaler.is_enabled()):
            loss = model(x.cuda()).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def main(args):
    model = nn.Linear(8, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", enabled=bool(args.fp16))
    train(model, optimizer, make(), args.fp16, scaler=scaler)
"""
    check_transformed(RULE, before, after)


def test_the_scaler_is_an_attribute_where_the_optimizer_is() -> None:
    """A trainer holds both."""
    before = """\
import torch
from apex import amp
from torch import nn


class Trainer:
    def __init__(self, config):
        self.config = config
        self.model = nn.Linear(8, 2).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        if config.fp16:
            self.model, self.optimizer = amp.initialize(self.model, self.optimizer, opt_level="O1")

    def update(self, x):
        self.optimizer.zero_grad()
        loss = self.model(x.cuda()).sum()
        if self.config.fp16:
            with amp.scale_loss(loss, self.optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            loss.backward()
        self.optimizer.step()
"""
    after = """\
import torch
from torch import nn


class Trainer:
    def __init__(self, config):
        self.config = config
        self.model = nn.Linear(8, 2).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda", enabled=bool(config.fp16))

    def update(self, x):
        self.optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16, enabled=self.scaler.is_enabled()):
            loss = self.model(x.cuda()).sum()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
"""
    check_transformed(RULE, before, after)


def test_initialized_in_one_file_and_trained_in_another() -> None:
    """The scaler goes where the optimizer goes, in all of the files at once."""
    engine = """\
import torch


def train(model, optimizer, batches, scaler):
    for x in batches:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x.cuda()).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
    script = """\
import torch
from engine import train

model = torch.nn.Linear(8, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
train(model, optimizer, make(), scaler=scaler)
"""
    check_program(RULE, {"train.py": SCRIPT, "engine.py": ENGINE}, {"train.py": script, "engine.py": engine})


def test_optimizers_that_take_turns() -> None:
    """The scaler looks at each behind its step, when no gradient of the old scale waits."""
    set_up = """\
        critic = Net().to(device)
        optimizer_c = torch.optim.SGD(critic.parameters(), lr=0.1)
        [model, critic], [optimizer, optimizer_c] = amp.initialize([model, critic], [optimizer, optimizer_c], num_losses=2)
        """
    step = """\
        optimizer_c.zero_grad()
        loss_c = criterion(critic(x), y)
        with amp.scale_loss(loss_c, optimizer_c, loss_id=0) as scaled_loss:
            scaled_loss.backward()
        optimizer_c.step()
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        with amp.scale_loss(loss, optimizer, loss_id=1) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        """
    after = """\
        optimizer_c.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss_c = criterion(critic(x), y)
        scaler.scale(loss_c).backward()
        scaler.step(optimizer_c)
        scaler.update()
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        """
    after_set_up = """\
        critic = Net().to(device)
        optimizer_c = torch.optim.SGD(critic.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        """
    changed(step, after, set_up, after_set_up)


def test_optimizers_that_step_together() -> None:
    """The scaler waits for the last of them."""
    set_up = "other = torch.optim.SGD(model.parameters(), lr=0.1)\nmodel, [optimizer, other] = amp.initialize(model, [optimizer, other])\n"
    step = STEP.replace("(loss, optimizer)", "(loss, [optimizer, other])").replace("optimizer.step()", "optimizer.step()\nother.step()")
    after = AFTER.replace("scaler.step(optimizer)", "scaler.step(optimizer)\nscaler.step(other)")
    changed(step, after, set_up, "other = torch.optim.SGD(model.parameters(), lr=0.1)\n" + SCALER)


def test_level_o0_goes_without_a_trace() -> None:
    """It computes in float32."""
    step = STEP.replace("optimizer.step()", "nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)\noptimizer.step()")
    after = """\
optimizer.zero_grad()
loss = criterion(model(x), y)
loss.backward()
nn.utils.clip_grad_norm_(model.parameters(), 1.0)
optimizer.step()
"""
    changed(step, after, INITIALIZE.replace("O1", "O0"), "")


# Other parts of Apex -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("imports", "before", "after"),
    [
        ("from apex.normalization import FusedLayerNorm", "FusedLayerNorm(8, eps=1e-6)", "torch.nn.LayerNorm(8, eps=1e-6)"),
        ("import apex", "apex.normalization.FusedLayerNorm(8, memory_efficient=True)", "torch.nn.LayerNorm(8)"),
        ("from apex.optimizers import FusedAdam", "FusedAdam(p, lr=1)", "torch.optim.AdamW(p, lr=1, weight_decay=0.0, fused=True)"),
        (
            "from apex.optimizers import FusedAdam",
            "FusedAdam(p, 1, adam_w_mode=False, set_grad_none=True)",
            "torch.optim.Adam(p, 1, fused=True)",
        ),
        ("from apex.optimizers import FusedSGD", "FusedSGD(p, lr=1, momentum=0.9)", "torch.optim.SGD(p, lr=1, momentum=0.9, fused=True)"),
        ("from apex.parallel import convert_syncbn_model", "convert_syncbn_model(m)", "torch.nn.SyncBatchNorm.convert_sync_batchnorm(m)"),
    ],
)
def test_parts_that_torch_has_too(imports: str, before: str, after: str) -> None:
    """Layers, optimizers and synchronized batch norm, with Apex's defaults written out where torch's are others."""
    check_transformed(RULE, f"import torch\n{imports}\n\nx = {before}\n", f"import torch\n\nx = {after}\n")


def test_fused_kernels_are_asked_for_where_they_take_all_parameters() -> None:
    """Before torch 2.4 they want them on the GPU when the optimizer is made."""
    before = "import torch\nfrom apex.optimizers import FusedSGD\n\nx = FusedSGD(p, lr=1)\n"
    check_transformed(RULE, before, "import torch\n\nx = torch.optim.SGD(p, lr=1)\n", torch=(2, 3))


def test_a_name_that_another_file_takes_from_this_one_stays() -> None:
    """It is still to be had there."""
    before = "import torch\nfrom apex.normalization import FusedLayerNorm\n\nx = FusedLayerNorm(8)\n"
    modules = {"other.py": "from train import FusedLayerNorm\n"}
    check_transformed(RULE, before, before.replace("= Fused", "= torch.nn."), modules=modules)
    check_held(RULE, program(), "apex-elsewhere", modules={"other.py": "from train import amp\nprint(amp)\n"})


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("from apex.parallel import DistributedDataParallel as DDP\nm = DDP(m)", "apex-ddp"),
        ("from apex import parallel\nm = parallel.convert_syncbn_model(m)\nm = parallel.DistributedDataParallel(m)", "apex-ddp"),
        ("from apex.parallel import convert_syncbn_model\nm = convert_syncbn_model(m, process_group=g)", "apex-arguments"),
        ("from apex.optimizers import FusedAdam\no = FusedAdam(p, bias_correction=False)", "apex-arguments"),
        ("from apex.optimizers import FusedAdam\no = FusedAdam(p, adam_w_mode=w)", "apex-arguments"),
        ("from apex.optimizers import FusedSGD\no = FusedSGD(p, **options)", "apex-arguments"),
        ("from apex.fp16_utils import FP16_Optimizer\no = FP16_Optimizer(o)", "apex-fp16-utils"),
        ("from apex.fp16_utils import network_to_half\nm = network_to_half(m)", "apex-fp16-utils"),
        ("import apex\nm = apex.fp16_utils.BN_convert_float(m.half())", "apex-fp16-utils"),
    ],
)
def test_parts_that_stay(text: str, code: str) -> None:
    """What torch does otherwise, or not at all, is named."""
    assert check_held(RULE, text, code).reason.help  # type: ignore[union-attr]


# Checkpoints ---------------------------------------------------------------------------------------------------------


def test_the_state_of_the_scaler_is_saved_under_its_own_key() -> None:
    """Checkpoints that Apex wrote still load, but for its state."""
    load = """\
checkpoint = torch.load("checkpoint.pt")
model.load_state_dict(checkpoint["model"])
if "amp" in checkpoint:
    amp.load_state_dict(checkpoint["amp"])
"""
    loaded = """\
checkpoint = torch.load("checkpoint.pt")
model.load_state_dict(checkpoint["model"])
if "scaler" in checkpoint:
    if checkpoint.get("scaler"):
        scaler.load_state_dict(checkpoint["scaler"])
"""
    save = 'torch.save({"model": model.state_dict(), "amp": amp.state_dict()}, "checkpoint.pt")\n'
    saved = 'torch.save({"model": model.state_dict(), "scaler": scaler.state_dict()}, "checkpoint.pt")\n'
    changed(STEP + save, AFTER + saved, INITIALIZE + load, SCALER + loaded)
    notes = run_transform(RULE, program(STEP + save)).notes
    assert {effect for note in notes for effect in note.effects} == {"numerics", "checkpoint"}
    assert any("Checkpoints" in words for words in notes[0].notes)


def test_a_state_that_joins_a_dictionary_later() -> None:
    """Under the switch, for instance."""
    save = 'state = {"model": model.state_dict()}\nif fp16:\n    state["amp"] = amp.state_dict()\ntorch.save(state, "checkpoint.pt")\n'
    saved = save.replace('"amp"', '"scaler"').replace("amp.state", "scaler.state")
    changed(GUARDED + save, GUARDED_AFTER + saved, GUARDED_SET_UP, GUARDED_SCALER)


@pytest.mark.parametrize(
    "set_up",
    [
        pytest.param("torch.save(amp.state_dict(), 'amp.pt')\n", id="a file of its own"),
        pytest.param("amp.load_state_dict(torch.load('amp.pt'))\n", id="from a file of its own"),
        pytest.param("print(amp.state_dict()['loss_scaler0'])\n", id="its scale is read"),
        pytest.param("def save():\n    return {'amp': amp.state_dict()}\n", id="in another function"),
    ],
)
def test_held_where_the_state_goes_elsewhere(set_up: str) -> None:
    """What is not an entry of a checkpoint beside the scaler is not followed."""
    check_held(RULE, program(set_up=INITIALIZE + set_up), "apex-state")


# Run -----------------------------------------------------------------------------------------------------------------

CLIP = "nn.utils.clip_grad_norm_(amp.master_params(optimizer), 0.5)\noptimizer.step()"
RUNS = [
    pytest.param(STEP, INITIALIZE, id="plain"),
    pytest.param(GUARDED, GUARDED_SET_UP, id="switched on"),
    pytest.param(GUARDED, GUARDED_SET_UP.replace("True", "False"), id="switched off"),
    pytest.param(
        GUARDED.replace("else:", "    nn.utils.clip_grad_norm_(amp.master_params(optimizer), 0.5)\nelse:").replace(
            "    loss.backward()", "    loss.backward()\n    nn.utils.clip_grad_norm_(model.parameters(), 0.5)"
        ),
        GUARDED_SET_UP,
        id="clipped in branches",
    ),
    pytest.param(
        "other.zero_grad()\nfirst = criterion(critic(x), y)\n"
        "with amp.scale_loss(first, other) as scaled_loss:\n    scaled_loss.backward()\n"
        f"other.step()\n{STEP}print(repr(first.item()))\n",
        "critic = Net().to(device)\nother = torch.optim.Adam(critic.parameters())\n"
        "(model, critic), (optimizer, other) = amp.initialize((model, critic), (optimizer, other))\n",
        id="two in turn",
    ),
    pytest.param(STEP.replace("optimizer.step()", CLIP), INITIALIZE, id="clipped"),
    pytest.param(
        "loss = criterion(model(x), y) / 2\nwith amp.scale_loss(loss, optimizer) as scaled_loss:\n    scaled_loss.backward()\n"
        "if i % 2:\n    optimizer.step()\n    optimizer.zero_grad()\n",
        INITIALIZE,
        id="accumulated",
    ),
]


@pytest.mark.parametrize(("step", "set_up"), RUNS)
@pytest.mark.parametrize("scaled", [False, True])
def test_trains_alike_to_the_last_bit(step: str, set_up: str, scaled: bool, tmp_path: Path) -> None:
    """With autocast off, torch's scaler gives what Apex gave, whether it is off too or really scales."""
    (tmp_path / "apex").mkdir()
    (tmp_path / "apex" / "__init__.py").write_text("")
    (tmp_path / "apex" / "amp.py").write_text(APEX)
    result = run_transform(RULE, program(step, set_up))
    assert result.outcome is Outcome.CHANGED
    after = result.after.decode()
    if scaled:
        after = after.replace('GradScaler("cuda"', 'GradScaler("cpu"').replace('autocast("cuda", dtype=torch.float16', 'autocast("cpu"')
        after = after.replace('autocast("cpu")', 'autocast("cpu", enabled=False)').replace("enabled=scaler.is_enabled()", "enabled=False")
    (tmp_path / "before.py").write_text(program(step, set_up))
    (tmp_path / "after.py").write_text(after)
    assert run_on_cpu(tmp_path / "before.py") == run_on_cpu(tmp_path / "after.py")


def test_all_rules_on_one_program(tmp_path: Path) -> None:
    """In one run, with nothing left to change in a second one; without CUDA it trains as before to the last bit."""
    text = program(GUARDED.replace("optimizer.step()", CLIP), GUARDED_SET_UP)
    selected = [Selected(transform, transform.options()) for transform in registry.select(registry.discover(), (), ())]
    after, rounds = text, []
    for _ in range(2):
        result = fix("train.py", after.encode(), Project.of_texts({"train.py": after}), selected, EngineSettings(format="off"))
        rounds.append(result.outcome)
        after = result.after.decode()
    assert rounds == [Outcome.CHANGED, Outcome.CLEAN]
    assert after.count("autocast(") == 1 and after.count("unscale_(") == 1 and "apex" not in after
    (tmp_path / "alone.py").write_text(run_transform(RULE, text).after.decode())
    (tmp_path / "all.py").write_text(after)
    assert run_on_cpu(tmp_path / "alone.py") == run_on_cpu(tmp_path / "all.py")


def test_infinite_gradients_skip_the_step_and_halve_the_scale(tmp_path: Path) -> None:
    """As Apex did."""
    text = program(STEP.replace("loss = criterion(model(x), y)", "loss = criterion(model(x), y) * (float('inf') if i == 3 else 1)"))
    after = run_transform(RULE, text).after.decode().replace('GradScaler("cuda"', 'GradScaler("cpu", init_scale=1024.0')
    after = after.replace('autocast("cuda", dtype=torch.float16)', 'autocast("cpu", dtype=torch.bfloat16)')
    told = "    print(scaler.get_scale(), model.layers[0].weight.sum().item())\n"
    script = tmp_path / "after.py"
    script.write_text(after.replace("    print(repr(loss.item()))\n", told))
    lines = [line.split() for line in run_on_cpu(script).splitlines()]
    assert [float(line[0]) for line in lines[:-1]] == [1024.0] * 3 + [512.0] * 5
    assert lines[3][1] == lines[2][1] != lines[4][1]


@pytest.mark.parametrize(("step", "set_up"), [run for run in RUNS if run.id in ("plain", "clipped")])
def test_trains_under_the_lists_of_cuda(step: str, set_up: str, tmp_path: Path) -> None:
    """On the pretend GPU nothing is banned, and the losses stay near those of float32."""
    script = tmp_path / "after.py"
    script.write_text(run_transform(RULE, program(step, set_up)).after.decode())
    half = run_on_fake_gpu(script)[0].split()
    full = run_on_cpu(script).split()
    assert half != full
    assert [float(word) for word in half] == pytest.approx([float(word) for word in full], rel=2e-2)
