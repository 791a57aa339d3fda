"""amp-loop: which training loops stay, which are held and why, which compute in half precision, and that they still train."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from textwrap import dedent, indent

import pytest

from tests.running import run_on_cpu, run_on_fake_gpu, skip_on_cuda_build
from torchfix import registry
from torchfix.result import Note, Outcome
from torchfix.testing import check_held, check_noop, check_transformed, run_transform

RULE = "amp-loop"
NETWORK = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x):
        return self.layers(x)
"""
STEP = """\
optimizer.zero_grad()
loss = criterion(model(x), y)
loss.backward()
optimizer.step()
"""
SET_UP = """\
use_amp = device.type == "cuda"
amp_dtype = torch.bfloat16 if use_amp and torch.cuda.get_device_capability()[0] >= 8 else torch.float16
scaler = torch.amp.GradScaler("cuda", enabled=use_amp and amp_dtype is torch.float16)
"""
REGION = 'with torch.autocast("cuda", dtype=amp_dtype, enabled=use_amp):'


def program(
    step: str = STEP,
    *,
    imports: str = "",
    network: str = NETWORK,
    model: str = "Net().to(device)",
    criterion: str = "nn.CrossEntropyLoss()",
    optimizer: str = "torch.optim.SGD(model.parameters(), lr=0.1)",
    set_up: str = "",
    copy: str = "x, y = x.to(device), y.to(device)",
    device: str = 'torch.device("cuda" if torch.cuda.is_available() else "cpu")',
) -> str:
    """A whole training script, which prints the loss of each batch and the weights' sum with every digit."""
    return f"""\
import torch
import torch.nn.functional as F
from torch import nn
{imports}
device = {device}


{network}

def batches():
    generator = torch.Generator().manual_seed(5)
    for _ in range(8):
        yield torch.randn(4, 8, generator=generator), torch.randint(0, 3, (4,), generator=generator)


torch.manual_seed(3)
model = {model}
criterion = {criterion}
optimizer = {optimizer}
{set_up}for i, (x, y) in enumerate(batches()):
    {copy}
{indent(step, "    ")}    print(repr(loss.item()))
print(repr(sum(parameter.sum().item() for parameter in model.parameters())))
"""


def after_of(text: str, **arguments: object) -> str:
    """What the rule makes of a script."""
    result = run_transform(RULE, text, **arguments)
    assert result.outcome is Outcome.CHANGED, [note.reason for note in result.notes]
    return result.after.decode()


def changed(step: str, after: str, **arguments: str) -> tuple[Note, ...]:
    """Check one iteration's statements; beside the optimizer stands the plain set-up, and ``with autocast:`` means its region."""
    step, after = dedent(step).lstrip("\n"), dedent(after).lstrip("\n").replace("with autocast:", REGION)
    return check_transformed(RULE, program(step, **arguments), program(after, **{**arguments, "set_up": SET_UP}))


# What stays ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(program(device='torch.device("cpu")'), id="on the host"),
        pytest.param(program(copy="pass", model="Net()"), id="nothing is ever copied to a device"),
        pytest.param("model = build()\nfor x in loader:\n    print(model(x.cuda()))\n", id="nothing goes backward"),
        pytest.param(
            program(STEP.replace("loss = criterion(model(x), y)", f"{REGION}\n    loss = criterion(model(x), y)")), id="autocast already"
        ),
        pytest.param(program(STEP.replace("loss.backward()", "scaler.scale(loss).backward()")), id="scaled already"),
        pytest.param(
            program(STEP.replace("loss.backward()", "with amp.scale_loss(loss, optimizer) as scaled:\n    scaled.backward()")),
            id="scaled by apex",
        ),
    ],
)
def test_leaves_loops_with_nothing_to_gain(text: str) -> None:
    """Loops on the host, loops that do not train, and loops that use mixed precision already are no findings."""
    check_noop(RULE, text)


def test_a_loop_in_an_autocast_region_is_left() -> None:
    """A region around the whole loop is somebody's choice already."""
    check_noop(RULE, program().replace("for i,", f"{REGION}\n  for i,").replace("\n    ", "\n      "))


# What is held: the program -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        pytest.param("framework", {"imports": "from accelerate import Accelerator\naccelerator = Accelerator()"}, id="accelerate"),
        pytest.param(
            "framework", {"set_up": "engine = deepspeed.initialize(model=model)\n", "imports": "import deepspeed"}, id="deepspeed"
        ),
        pytest.param("framework", {"imports": "import lightning\nfabric = lightning.Fabric()"}, id="lightning"),
        pytest.param(
            "apex", {"imports": "from apex import amp", "set_up": "model, optimizer = amp.initialize(model, optimizer)\n"}, id="apex"
        ),
        pytest.param("sharded", {"imports": "from torch.distributed.fsdp import fully_shard"}, id="sharded"),
        pytest.param("float64", {"set_up": "torch.set_default_dtype(torch.float64)\n"}, id="float64 by default"),
        pytest.param("float64", {"set_up": "model.double()\n"}, id="float64 weights"),
        pytest.param("float64", {"copy": "x, y = x.to(device).double(), y.to(device)"}, id="float64 batches"),
        pytest.param("not-cuda", {"device": 'torch.device("mps")'}, id="another device"),
        pytest.param("anomaly-mode", {"set_up": "torch.autograd.set_detect_anomaly(True)\n"}, id="anomaly detection"),
        pytest.param("forward-hooks", {"set_up": "model.register_forward_hook(keep)\n"}, id="a forward hook"),
        pytest.param("precision-chosen", {"set_up": "model.half()\n"}, id="half weights"),
        pytest.param("precision-chosen", {"set_up": "with torch.autocast('cuda'):\n    warm_up()\n"}, id="autocast elsewhere"),
    ],
)
def test_holds_where_the_program_has_a_precision_of_its_own(code: str, arguments: dict[str, str]) -> None:
    """A framework, float64, another device, or mixed precision in another part of the file."""
    check_held(RULE, program(**arguments), code)


def test_a_script_that_a_framework_runs_is_held() -> None:
    """The framework may be imported by the script that calls the loop's file."""
    text = "import torch\n\n\ndef fit(model, loader, optimizer):\n    for x, y in loader:\n        optimizer.zero_grad()\n"
    text += "        loss = model(x.cuda()).sum()\n        loss.backward()\n        optimizer.step()\n"
    main = "from accelerate import Accelerator\nfrom train import fit\n\nfit(*Accelerator().prepare(model, loader, optimizer))\n"
    check_held(RULE, text, "framework", modules={"main.py": main})


def test_torch_without_mixed_precision_is_held() -> None:
    """A project that still allows torch 1.5 cannot have it."""
    check_held(RULE, program(), "torch-too-old", torch=(1, 5))


# What is held: backward and step -------------------------------------------------------------------------------------

CLIPPED = STEP.replace("optimizer.step()", "nn.utils.clip_grad_norm_(model.parameters(), 1.0)\noptimizer.step()")
EVERY_SECOND = """\
loss = criterion(model(x), y)
loss.backward()
if i % 2 == 1:
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("code", "step"),
    [
        pytest.param("gradients-kept", STEP + "optimizer.step()\n", id="two steps with one loss"),
        pytest.param("optimizer-not-seen", STEP + "other.step()\nother.zero_grad()\n", id="an optimizer out of sight beside it"),
        pytest.param("closure", STEP.replace("optimizer.step()", "optimizer.step(closure)"), id="a closure by position"),
        pytest.param("closure", STEP.replace("optimizer.step()", "optimizer.step(closure=closure)"), id="a closure by name"),
        pytest.param("closure", STEP.replace("optimizer.step()", "value = optimizer.step()"), id="a step with a result"),
        pytest.param("double-backward", STEP.replace("loss.backward()", "loss.backward(create_graph=True)"), id="a graph of gradients"),
        pytest.param("double-backward", "g = torch.autograd.grad(model(x).sum(), x)\n" + STEP, id="gradients by hand"),
        pytest.param("backward-form", STEP.replace("loss.backward()", "torch.autograd.backward(loss)"), id="backward by function"),
        pytest.param(
            "conditional-backward", STEP.replace("loss.backward()", "if loss > 0:\n    loss.backward()"), id="a step without backward"
        ),
        pytest.param("gradient-hooks", "model.layers[0].weight.register_hook(print)\n" + STEP, id="a hook"),
        pytest.param(
            "gradients-read-elsewhere",
            EVERY_SECOND.replace("if i", "nn.utils.clip_grad_norm_(model.parameters(), 1.0)\nif i"),
            id="clipping in every micro-step",
        ),
        pytest.param(
            "gradients-read-elsewhere",
            STEP.replace(
                "optimizer.step()",
                "if i:\n    optimizer.step()\nelse:\n    for p in model.parameters():\n        p.data.add_(p.grad, alpha=-0.1)",
            ),
            id="a step by hand beside it",
        ),
        pytest.param(
            "skipped-update",
            STEP.replace(
                "optimizer.step()",
                "norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)\nif not norm.isfinite():\n    continue\noptimizer.step()",
            ),
            id="a step that is skipped after unscaling",
        ),
        pytest.param(
            "skipped-update", CLIPPED.replace("1.0)", "1.0, error_if_nonfinite=True)"), id="clipping that raises at infinite gradients"
        ),
        pytest.param(
            "skipped-update",
            STEP.replace(
                "optimizer.step()", "norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)\nassert norm < 99\noptimizer.step()"
            ),
            id="an assertion about gradients",
        ),
        pytest.param("clip-parameters", CLIPPED.replace("model.parameters()", "other.parameters()"), id="clipping something else"),
        pytest.param(
            "input-gradients", STEP.replace("optimizer.step()", "noise = x.grad.sign()\noptimizer.step()"), id="the batch's gradient"
        ),
        pytest.param(
            "gradients-out-of-sight",
            STEP.replace("optimizer.step()", "tools.clip(model.parameters())\noptimizer.step()"),
            id="code out of sight",
        ),
        pytest.param(
            "gradients-carried",
            STEP.replace(
                "optimizer.step()",
                "for p in model.parameters():\n    kept[p] = kept[p] + p.grad\n    p.grad = p.grad + kept[p]\noptimizer.step()",
            ),
            id="gradients are smoothed over the steps",
        ),
    ],
)
def test_holds_updates_of_another_kind(code: str, step: str) -> None:
    """One loss, one backward pass, one optimizer, one step, and gradients that are read where they can be unscaled."""
    check_held(RULE, program(step), code)


@pytest.mark.parametrize(
    "network",
    [
        pytest.param(NETWORK.replace("return", "torch.autograd.grad(x.sum(), x)\n        return"), id="in the network"),
        pytest.param(f"{NETWORK}\n\ndef penalty(x):\n    return torch.autograd.grad(model(x).sum(), x)\n", id="in a function"),
    ],
)
def test_holds_gradients_by_hand_wherever_they_are_taken(network: str) -> None:
    """A gradient penalty would be one of scaled gradients."""
    check_held(RULE, program("penalty(x)\n" + STEP, network=network), "double-backward")


@pytest.mark.parametrize(
    ("code", "optimizer"),
    [
        pytest.param("closure", "torch.optim.LBFGS(model.parameters())", id="LBFGS"),
        pytest.param("optimizer-not-seen", "build_optimizer(model)", id="an optimizer out of sight"),
        pytest.param("sparse-gradients", "torch.optim.SparseAdam(model.parameters())", id="sparse gradients"),
        pytest.param("no-network-trained", "torch.optim.SGD([canvas], lr=0.1)", id="it paints a picture"),
    ],
)
def test_holds_optimizers_that_a_scaler_does_not_serve(code: str, optimizer: str) -> None:
    """The optimizer must be a torch optimizer over a network's dense parameters."""
    check_held(RULE, program(optimizer=optimizer), code)


def test_a_backward_pass_in_a_helper_that_may_skip_it_is_held() -> None:
    """The step has no gradients then."""
    text = program(STEP.replace("loss.backward()", "send(loss)")).replace(
        "torch.manual_seed(3)", "def send(loss):\n    if loss > 0:\n        loss.backward()\n\n\ntorch.manual_seed(3)"
    )
    check_held(RULE, text, "backward-elsewhere")


def test_a_step_in_a_method_of_another_object_is_held() -> None:
    """A wrapper that steps its optimizer hides the step that a scaler must take."""
    wrapper = NETWORK + "\n\nclass Warmup:\n    def update(self):\n        self.optimizer.step()\n"
    check_held(RULE, program(STEP.replace("optimizer.step()", "optimizer.update()"), network=wrapper), "step-elsewhere")


# What is held: the forward pass --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        pytest.param("model-not-seen", {"model": "build().to(device)"}, id="a network out of sight"),
        pytest.param(
            "unknown-loss", {"step": STEP.replace("criterion(", "library.loss(F.log_softmax(").replace(", y)", ", 1), y)")}, id="on float32"
        ),
        pytest.param("bce-loss", {"criterion": "nn.BCELoss()"}, id="BCELoss"),
        pytest.param("bce-loss", {"step": STEP.replace("criterion", "F.binary_cross_entropy")}, id="binary_cross_entropy"),
        pytest.param("unknown-loss", {"step": STEP.replace("criterion", "library.loss")}, id="a loss out of sight on the bare output"),
        pytest.param(
            "half-escapes",
            {
                "network": NETWORK.replace("return self.layers(x)", "return {'scores': self.layers(x)}"),
                "step": STEP.replace("loss = criterion(model(x), y)", "out = model(x)\nloss = criterion(out['scores'], y)\nstore(out)"),
            },
            id="a dictionary of half tensors that is stored",
        ),
    ],
)
def test_holds_forward_passes_that_half_precision_would_change(code: str, arguments: dict[str, str]) -> None:
    """The network, the loss and whatever takes their results must be in sight."""
    check_held(RULE, program(**arguments), code)


def layers(forward: str, init: str = "self.layers = nn.Linear(8, 3)", outside: str = "") -> str:
    """A network whose forward pass has these statements before its result."""
    return f"""\
{outside}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x):
        h = self.layers(x)
{indent(dedent(forward), "        ")}
        return h
"""


def test_holds_a_logarithm_of_the_networks_probabilities() -> None:
    """A conversion behind the network comes too late for its sigmoid, which half precision has rounded to 0 or 1."""
    step = STEP.replace("criterion(model(x), y)", "-torch.log(1 - model(x)).mean()")
    check_held(RULE, program(step, model="nn.Sequential(Net(), nn.Sigmoid()).to(device)"), "log-of-sigmoid")


@pytest.mark.parametrize(
    ("code", "network"),
    [
        pytest.param("half-overflow", layers("h = h.masked_fill(h > 0, -1e9)"), id="a mask value"),
        pytest.param("half-overflow", layers("h = h - (1 - h) * 1e9"), id="a mask by arithmetic"),
        pytest.param("index-write", layers("y = torch.zeros_like(x)\ny[x > 0] = h[x > 0]"), id="a write by mask"),
        pytest.param("index-write", layers("x.index_add_(0, i, h)"), id="index_add_"),
        pytest.param("index-write", layers("x.scatter_(1, i, h)"), id="scatter_ of a tensor"),
        pytest.param("tiny-epsilon", layers("h = h / (h.std() + 1e-8)"), id="a vanishing epsilon"),
        pytest.param(
            "tiny-epsilon", layers("h = h / (h.std() + self.eps)", "self.layers, self.eps = nn.Linear(8, 3), 1e-8"), id="one with a name"
        ),
        pytest.param("log-of-sigmoid", layers("p = torch.sigmoid(h)\nh = torch.log(p)"), id="the log of a sigmoid"),
        pytest.param("linear-algebra", layers("h = torch.linalg.inv(h)"), id="an inverse"),
        pytest.param("linear-algebra", layers("h = h.svd()[0]"), id="a decomposition"),
        pytest.param("spectral", layers("h = torch.fft.fft(h)"), id="a transform"),
        pytest.param("float64", layers("h = h.double()"), id="float64"),
        pytest.param("float64", layers("h = h.to(torch.complex64)"), id="complex numbers"),
        pytest.param("half-to-numpy", layers("statistics = h.detach().cpu().numpy()"), id="NumPy"),
        pytest.param("typed-tensor", layers("h = h.type(torch.cuda.FloatTensor)"), id="a typed tensor"),
        pytest.param("precision-chosen", layers("h = h.half()"), id="half precision by hand"),
        pytest.param("bce-loss", layers("self.aux = F.binary_cross_entropy(h, x)"), id="BCELoss in the network"),
        pytest.param("sparse-gradients", layers("", "self.layers = nn.Embedding(8, 3, sparse=True)"), id="sparse embeddings"),
        pytest.param(
            "unseen-layer", layers("", "self.layers = Convolution(8)", "from dcn import Convolution\n\n"), id="a layer of another package"
        ),
        pytest.param(
            "unseen-layer", layers("h = scatter_mean(h, x)", outside="from torch_scatter import scatter_mean\n\n"), id="its function"
        ),
        pytest.param(
            "custom-autograd",
            layers(
                "h = Round.apply(h)",
                outside="class Round(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        return x.round()\n\n",
            ),
            id="an autograd function",
        ),
        pytest.param("torchscript", layers("h = act(h)", outside="@torch.jit.script\ndef act(x):\n    return x * 2\n\n"), id="TorchScript"),
    ],
)
def test_holds_networks_that_half_precision_breaks(code: str, network: str) -> None:
    """What raises, overflows or vanishes in half precision is named with its line."""
    note = check_held(RULE, program(network=network), code)
    assert note.reason is not None
    assert note.reason.text.startswith("train.py:")


@pytest.mark.parametrize(
    "forward",
    [
        pytest.param("y = torch.zeros(4, 3)\nfor step in range(3):\n    y[:, step] = h[:, step]", id="a write by number"),
        pytest.param("one_hot = torch.zeros_like(h).scatter_(1, h.argmax(1, keepdim=True), 1)", id="scatter_ of a number"),
        pytest.param("h = h.masked_fill(h > 0, float('-inf'))", id="minus infinity"),
        pytest.param("h = h / (h.norm() + 1e-12)", id="an epsilon beside a float32 norm"),
        pytest.param("results = {}\nresults[len(h)] = h", id="a dictionary"),
    ],
)
def test_sound_networks_are_not_held(forward: str) -> None:
    """What half precision takes is no reason."""
    after_of(program(network=layers(forward)))


def test_hazards_that_do_not_run_in_training_are_no_reason() -> None:
    """Constructors, initialisation, and methods that the forward pass never calls may do as they like."""
    unused = """
    def export(self):
        return self.layers[0].weight.double().numpy()

    def reset_parameters(self):
        self.layers[0].weight.fill_(1e9)
"""
    after_of(program(network=NETWORK + unused))


# What changes --------------------------------------------------------------------------------------------------------


def test_the_documented_example_becomes_what_it_says() -> None:
    """The rule's own before and after."""
    transform = registry.find(RULE)
    (note,) = check_transformed(RULE, transform.before, transform.after)
    assert (note.line, note.end_line) == (9, 9)
    assert note.risk == "numeric"
    assert note.effects == ("numerics",)


def test_forward_and_loss_go_under_autocast_and_the_loss_is_scaled() -> None:
    """The region ends before the backward pass."""
    changed(
        """
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        """,
        """
        optimizer.zero_grad()
        with autocast:
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        """,
    )


def test_statements_around_forward_and_loss_stay_outside() -> None:
    """The region is the smallest one: neither the batch's preparation nor metrics nor the division of the loss."""
    changed(
        """
        x = x.flatten(1)
        out = model(x)
        shape = out.shape
        loss = criterion(out, y)
        loss = loss / 2
        hits = (out.argmax(1) == y).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        """,
        """
        x = x.flatten(1)
        with autocast:
            out = model(x)
            shape = out.shape
            loss = criterion(out, y)
        loss = loss / 2
        hits = (out.argmax(1) == y).sum()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        """,
    )


def test_zero_grad_between_forward_and_loss_parts_the_region() -> None:
    """No region holds a call that is about gradients."""
    changed(
        """
        out = model(x)
        optimizer.zero_grad()
        loss = criterion(out, y)
        loss.backward()
        optimizer.step()
        """,
        """
        with autocast:
            out = model(x)
        optimizer.zero_grad()
        with autocast:
            loss = criterion(out, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        """,
    )


def test_gradients_are_unscaled_before_they_are_clipped() -> None:
    """Once, right before the first reader, whatever stands between it and the step."""
    changed(
        """
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        if i:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        norm = model.layers[0].weight.grad.norm()
        optimizer.step()
        """,
        """
        optimizer.zero_grad()
        with autocast:
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if i:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        norm = model.layers[0].weight.grad.norm()
        scaler.step(optimizer)
        scaler.update()
        """,
    )


def test_gradients_that_are_read_after_the_step_are_unscaled_before_it() -> None:
    """Fused optimizers leave them scaled."""
    changed(
        """
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        size = sum(p.grad.norm() for p in model.parameters())
        optimizer.zero_grad()
        """,
        """
        with autocast:
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        size = sum(p.grad.norm() for p in model.parameters())
        optimizer.zero_grad()
        """,
    )


def test_a_function_of_the_project_that_reads_gradients_counts_as_a_reader() -> None:
    """Clipping in a helper is clipping."""
    changed(
        """
        loss = criterion(model(x), y)
        loss.backward()
        clip(optimizer)
        optimizer.step()
        optimizer.zero_grad()
        """,
        """
        with autocast:
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        """,
        network=f"{NETWORK}\n\ndef clip(optimizer):\n    for p in optimizer.param_groups[0]['params']:\n        p.grad.clamp_(-1, 1)\n",
    )


def test_clearing_gradients_by_hand_is_no_reading() -> None:
    """``p.grad = None`` and ``p.grad.zero_()`` need no unscaling."""
    changed(
        """
        for p in model.parameters():
            if p.grad is not None:
                p.grad.zero_()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        """,
        """
        for p in model.parameters():
            if p.grad is not None:
                p.grad.zero_()
        with autocast:
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        """,
    )


def test_accumulation_updates_only_where_it_steps() -> None:
    """Every micro-step scales; unscaling, step and update stand in the branch that steps."""
    changed(
        """
        loss = criterion(model(x), y) / 2
        loss.backward()
        if i % 2 == 1:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        """,
        """
        with autocast:
            loss = criterion(model(x), y) / 2
        scaler.scale(loss).backward()
        if i % 2 == 1:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        """,
    )


def test_accumulation_in_a_loop_of_its_own_steps_once_behind_it() -> None:
    """The micro-batches of an inner loop are one update."""
    changed(
        """
        optimizer.zero_grad()
        for part, labels in zip(x.chunk(2), y.chunk(2)):
            loss = criterion(model(part), labels)
            loss.backward()
        optimizer.step()
        """,
        """
        optimizer.zero_grad()
        for part, labels in zip(x.chunk(2), y.chunk(2)):
            with autocast:
                loss = criterion(model(part), labels)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        """,
    )


def test_a_divided_loss_is_divided_before_it_is_scaled() -> None:
    """``(loss / k).backward()`` keeps its division."""
    changed(
        """
        loss = criterion(model(x), y)
        (loss / 2).backward()
        if i % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()
        """,
        """
        with autocast:
            loss = criterion(model(x), y)
        scaler.scale(loss / 2).backward()
        if i % 2 == 1:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        """,
    )


def test_a_loss_without_a_name_gets_one() -> None:
    """``criterion(...).backward()`` is parted, so that the backward pass stays outside the region."""
    changed(
        """
        loss = torch.zeros(())
        optimizer.zero_grad()
        criterion(model(x), y).backward(retain_graph=True)
        optimizer.step()
        """,
        """
        loss = torch.zeros(())
        optimizer.zero_grad()
        with autocast:
            batch_loss = criterion(model(x), y)
        scaler.scale(batch_loss).backward(retain_graph=True)
        scaler.step(optimizer)
        scaler.update()
        """,
    )


def test_a_sum_of_torchs_losses_stays_under_autocast() -> None:
    """Each of them is float32, so their sum is."""
    changed(
        """
        out = model(x)
        loss = criterion(out, y) + 0.4 * criterion(out.flip(0), y)
        loss += 0.1 * F.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        """,
        """
        with autocast:
            out = model(x)
            loss = criterion(out, y) + 0.4 * criterion(out.flip(0), y)
            loss += 0.1 * F.cross_entropy(out, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        """,
    )


def test_a_loss_of_the_project_stays_outside_on_float32() -> None:
    """What it does in half precision is not known, so it gets what it always got."""
    changed(
        """
        out = model(x)
        loss = squared(out, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        """,
        """
        with autocast:
            out = model(x).float()
        loss = squared(out, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        """,
        network=NETWORK + "\n\ndef squared(out, y):\n    return ((out - F.one_hot(y, 3)) ** 2).mean()\n",
    )


def test_a_loss_class_without_weights_is_a_formula_too() -> None:
    """It stays outside; torch's own loss beside it does not."""
    changed(
        """
        out = model(x)
        loss = criterion(out, y)
        loss = loss + dice(out.softmax(1), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        """,
        """
        with autocast:
            out = model(x).float()
            loss = criterion(out, y)
        loss = loss + dice(out.softmax(1), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        """,
        network=NETWORK
        + "\n\nclass Dice(nn.Module):\n    def forward(self, p, y):\n        return 1 - (p * F.one_hot(y, 3)).sum() / p.sum()\n",
        criterion="nn.CrossEntropyLoss()\ndice = Dice()",
    )


def test_a_loss_by_hand_stays_outside_on_float32() -> None:
    """Sums and products of a formula are no layers."""
    changed(
        """
        out = model(x)
        loss = ((out - F.one_hot(y, 3)) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        """,
        """
        with autocast:
            out = model(x).float()
        loss = ((out - F.one_hot(y, 3)) ** 2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        """,
    )


def test_results_that_are_used_in_float32_are_converted_back() -> None:
    """Probabilities, NumPy and stored results outside the region get float32."""
    changed(
        """
        out = model(x)
        loss = criterion(out, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        probabilities = F.softmax(out, 1).detach().cpu().numpy()
        """,
        """
        with autocast:
            out = model(x).float()
            loss = criterion(out, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        probabilities = F.softmax(out, 1).detach().cpu().numpy()
        """,
    )


def test_results_that_are_read_after_the_loop_are_converted_back() -> None:
    """The last batch's output outlives the loop."""
    step = STEP.replace("loss = criterion(model(x), y)", "out = model(x)\nloss = criterion(out, y)")
    assert "out = model(x).float()" in after_of(program(step) + "torch.save(out, 'last.pt')\n")
    assert "out = model(x)\n" in after_of(program(step) + "out = model(x)\ntorch.save(out, 'last.pt')\n")


def test_results_that_are_unpacked_are_converted_by_their_names() -> None:
    """A network that returns several tensors cannot be converted as a whole."""
    changed(
        """
        out, extra = model(x)
        loss = criterion(out, y)
        loss = loss + (extra.abs() ** 2).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        """,
        """
        with autocast:
            out, extra = model(x)
            loss = criterion(out, y)
        extra = extra.float()
        loss = loss + (extra.abs() ** 2).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        """,
        network=layers("", "self.layers, self.head = nn.Linear(8, 3), nn.Linear(3, 2)").replace("return h", "return h, self.head(h)"),
    )


def test_a_tensor_that_only_a_loss_takes_is_converted_where_it_is_given() -> None:
    """It may be None where it is made, but not where the loss reads its shape."""
    changed(
        """
        out, extra = model(x)
        loss = criterion(out, y)
        if i > 1:
            loss += penalty(extra)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        """,
        """
        with autocast:
            out, extra = model(x)
            loss = criterion(out, y)
        if i > 1:
            loss += penalty(extra.float())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        """,
        network=layers("extra = self.layers(x) if self.training else None").replace("return h", "return h, extra")
        + "\n\ndef penalty(t):\n    size = t.size(0)\n    return (t * t).sum() / size\n",
    )


ACCURACY = """\
def accuracy(out, y, topk=(1,)):
    _, best = out.topk(max(topk), 1)
    return best.t().eq(y.view(1, -1)).float().mean()
"""


def test_metrics_of_the_project_are_read_before_they_are_trusted() -> None:
    """A function that only picks and compares takes half precision as it is."""
    changed(
        """
        out = model(x)
        loss = criterion(out, y)
        hits = accuracy(out, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        """,
        """
        with autocast:
            out = model(x)
            loss = criterion(out, y)
        hits = accuracy(out, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        """,
        network=f"{NETWORK}\n\n{ACCURACY}",
    )


def test_state_that_is_carried_over_may_stay_half() -> None:
    """A hidden state that only goes back into the network is cast there."""
    changed(
        """
        out, hidden = model(x, hidden.detach())
        loss = criterion(out, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        """,
        """
        with autocast:
            out, hidden = model(x, hidden.detach())
            loss = criterion(out, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        """,
        network=layers("").replace("forward(self, x)", "forward(self, x, h)").replace("return h", "return h, h"),
    )


def test_a_network_that_ends_in_log_softmax_gives_float32() -> None:
    """Its result may be used anywhere."""
    changed(
        """
        out = model(x)
        loss = F.nll_loss(out, y)
        confidence = out.exp().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        """,
        """
        with autocast:
            out = model(x)
            loss = F.nll_loss(out, y)
        confidence = out.exp().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        """,
        network=NETWORK.replace("return self.layers(x)", "return F.log_softmax(self.layers(x), dim=1)"),
    )


def test_a_network_that_computes_its_own_loss_is_all_there_is() -> None:
    """What it returns is read from its code: torch's loss is float32."""
    changed(
        """
        loss, scores = model(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        """,
        """
        with autocast:
            loss, scores = model(x, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        """,
        network=layers("").replace("forward(self, x)", "forward(self, x, y)").replace("return h", "return F.cross_entropy(h, y), h"),
    )


def test_a_condition_around_backward_keeps_its_place() -> None:
    """The loop of the transfer-learning tutorial: one region for both phases, scaling where it steps, and a word about it."""
    (note,) = changed(
        """
        optimizer.zero_grad()
        with torch.set_grad_enabled(i > 0):
            out = model(x)
            loss = criterion(out, y)
            if i > 0:
                loss.backward()
                optimizer.step()
        """,
        """
        optimizer.zero_grad()
        with torch.set_grad_enabled(i > 0):
            with autocast:
                out = model(x)
                loss = criterion(out, y)
            if i > 0:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        """,
    )
    assert any("evaluation batches" in words for words in note.notes)


# The device ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("test", "arguments"),
    [
        pytest.param("torch.cuda.is_available()", {"model": "Net().cuda()", "copy": "x, y = x.cuda(), y.cuda()"}, id="hard-coded"),
        pytest.param('torch.device(device).type == "cuda"', {"device": '"cuda" if torch.cuda.is_available() else "cpu"'}, id="a word"),
        pytest.param('device.type == "cuda"', {"device": "torch.accelerator.current_accelerator()"}, id="whatever the machine has"),
        pytest.param(
            "bool(on_gpu)",
            {
                "model": "Net()",
                "copy": "if on_gpu:\n        x, y = x.cuda(), y.cuda()",
                "device": "None\non_gpu = torch.cuda.is_available()",
            },
            id="a flag",
        ),
    ],
)
def test_the_switch_follows_the_programs_own_device(test: str, arguments: dict[str, str]) -> None:
    """The test for CUDA is made of the variable that the copies use."""
    assert f"\nuse_amp = {test}\n" in after_of(program(**arguments))


def test_data_parallel_gets_float16_only() -> None:
    """Its threads do not see bfloat16."""
    text = after_of(program(model="nn.DataParallel(Net()).to(device)"))
    assert 'use_amp = device.type == "cuda"\nscaler = torch.amp.GradScaler("cuda", enabled=use_amp)\n' in text
    assert 'with torch.autocast("cuda", dtype=torch.float16, enabled=use_amp):' in text
    assert "bfloat16" not in text
    assert any("DataParallel" in words for words in run_transform(RULE, program(model="nn.DataParallel(Net()).to(device)")).notes[0].notes)


def test_data_parallel_inside_the_network_gets_float16_only() -> None:
    """Threads that run a part of the network do not see bfloat16 either, and without a scaler small gradients would vanish."""
    inside = program(network=NETWORK.replace("nn.Sequential(", "nn.DataParallel(nn.Sequential(").replace("3))", "3)))"))
    outside = program(model="Net().to(device)\nmodel.layers = nn.DataParallel(model.layers)")
    for text in (inside, outside):
        assert "DataParallel" in text
        assert "bfloat16" not in after_of(text)


@pytest.mark.parametrize(
    ("torch", "region", "scaler"),
    [
        ((2, 2), REGION, "torch.cuda.amp.GradScaler(enabled=use_amp and amp_dtype is torch.float16)"),
        ((1, 10), REGION, "torch.cuda.amp.GradScaler(enabled=use_amp and amp_dtype is torch.float16)"),
        ((1, 6), "with torch.cuda.amp.autocast(enabled=use_amp):", "torch.cuda.amp.GradScaler(enabled=use_amp)"),
    ],
)
def test_old_torch_gets_its_own_spelling(torch: tuple[int, int], region: str, scaler: str) -> None:
    """Nothing newer than the oldest torch that the project allows."""
    text = after_of(program(), torch=torch)
    assert region in text
    assert f"scaler = {scaler}\n" in text


WITHOUT_TORCH = """\
from torch import nn, optim

model = nn.Linear(2, 2).cuda()
criterion = nn.MSELoss()
optimizer = optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    loss = criterion(model(x.cuda()), y.cuda())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_bfloat16_by_wish_has_no_scaler() -> None:
    """Nothing is scaled, and the precision stands in the region."""
    result = run_transform(RULE, program(CLIPPED), dtype="bfloat16")
    after = result.after.decode()
    assert 'with torch.autocast("cuda", dtype=torch.bfloat16, enabled=use_amp):' in after
    assert 'use_amp = device.type == "cuda"\nfor i,' in after
    assert "scal" not in after
    assert "amp_dtype" not in after
    assert not any("scaler" in words for note in result.notes for words in note.notes)


@pytest.mark.parametrize(
    ("text", "torch"),
    [
        pytest.param(program(model="nn.DataParallel(Net()).to(device)"), None, id="under DataParallel"),
        pytest.param(program(), (1, 8), id="before torch 1.10"),
    ],
)
def test_bfloat16_by_wish_is_held_where_it_cannot_be_had(text: str, torch: tuple[int, int] | None) -> None:
    """It would quietly be float16."""
    check_held(RULE, text, "no-bfloat16", torch=torch, dtype="bfloat16")


def test_float16_by_wish_always_has_its_scaler() -> None:
    """Whatever the GPU could do."""
    after = run_transform(RULE, program(), dtype="float16").after.decode()
    assert 'with torch.autocast("cuda", dtype=torch.float16, enabled=use_amp):' in after
    assert 'scaler = torch.amp.GradScaler("cuda", enabled=use_amp)' in after
    assert "bfloat16" not in after


def test_names_of_torch_are_spelled_as_the_file_spells_them() -> None:
    """An alias is used, and a file without ``import torch`` gets it."""
    text = (
        program().replace("import torch\n", "import torch as th\n", 1).replace("torch.", "th.").replace("import th.nn", "import torch.nn")
    )
    assert 'with th.autocast("cuda", dtype=amp_dtype, enabled=use_amp):' in after_of(text)
    assert "\nimport torch\n" in f"\n{after_of(WITHOUT_TORCH)}"


# Where the scaler stands ---------------------------------------------------------------------------------------------

TRAIN = """\
import torch
import torch.nn.functional as F
from torch import nn


def train(model, device, loader, optimizer):
    model.train()
    for epoch in range(2):
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Linear(8, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, device, [], optimizer)
"""


def test_a_scaler_is_handed_on_where_the_optimizer_is() -> None:
    """The function gets one more parameter, and its callers give it the scaler that stands beside the optimizer."""
    check_transformed(
        RULE,
        TRAIN,
        """\
        import torch
        import torch.nn.functional as F
        from torch import nn


        def train(model, device, loader, optimizer, scaler):
            model.train()
            use_amp = device.type == "cuda"
            amp_dtype = torch.bfloat16 if use_amp and not scaler.is_enabled() else torch.float16
            for epoch in range(2):
                for x, y in loader:
                    x, y = x.to(device), y.to(device)
                    optimizer.zero_grad()
                    with torch.autocast("cuda", dtype=amp_dtype, enabled=use_amp):
                        loss = F.cross_entropy(model(x), y)
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()


        def main():
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            model = nn.Linear(8, 3).to(device)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda", enabled=device.type == "cuda" and torch.cuda.get_device_capability()[0] < 8)
            train(model, device, [], optimizer, scaler=scaler)
        """,
    )


def test_a_scaler_goes_through_every_function_in_between() -> None:
    """Each of them gets the parameter; one with defaults gets a default."""
    text = TRAIN.replace("def main():", "def fit(net, opt, where=None, rounds=1):\n    train(net, where, [], opt)\n\n\ndef main():")
    text = text.replace("    train(model, device, [], optimizer)\n", "    fit(model, optimizer, device)\n")
    after = after_of(text)
    assert "def fit(net, opt, where=None, rounds=1, scaler=None):\n    train(net, where, [], opt, scaler=scaler)\n" in after
    assert "    fit(model, optimizer, device, scaler=scaler)\n" in after


def test_the_device_is_found_through_the_parameters() -> None:
    """``args.device`` of the loop is the same options' device where the optimizer is made."""
    text = TRAIN.replace("model, device, loader, optimizer):", "model, args, loader, optimizer):").replace(
        "to(device), y.to(device)", "to(args.device), y.to(args.device)"
    )
    text = text.replace('def main():\n    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")\n', "def main(options):\n")
    text = text.replace("nn.Linear(8, 3).to(device)", "nn.Linear(8, 3).to(options.device)").replace(
        "train(model, device,", "train(model, options,"
    )
    after = after_of(text.replace("        for x, y", "        model.to(args.device)\n        for x, y"))
    assert '    use_amp = torch.device(args.device).type == "cuda"\n' in after
    assert 'enabled=torch.device(options.device).type == "cuda" and' in after


def test_a_device_variable_of_another_function_is_not_used() -> None:
    """The loop cannot read it, so that the machine is asked."""
    after = after_of(TRAIN.replace("x, y = x.to(device), y.to(device)", "x, y = move(x), move(y)").replace("model, device, ", "model, "))
    assert "    use_amp = torch.cuda.is_available()\n" in after


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(TRAIN + "\n\ncallbacks = [train]\n", id="the function is handed on"),
        pytest.param(TRAIN.replace("def train", "@timed\ndef train"), id="the function is decorated"),
        pytest.param(
            TRAIN + "\n\ndef other(model, optimizers):\n    train(model, 0, [], optimizers[0])\n", id="a caller has it from elsewhere"
        ),
    ],
)
def test_holds_where_the_scaler_cannot_follow_the_optimizer(text: str) -> None:
    """Every caller must be seen, and have its optimizer from one place."""
    result = run_transform(RULE, text)
    assert result.outcome is Outcome.CLEAN
    assert [note.reason.code for note in result.notes if note.reason] in (
        ["optimizer-elsewhere"],
        ["optimizer-not-seen"],
        ["model-not-seen"],
    )


def test_an_optimizer_of_the_instance_has_its_scaler_there() -> None:
    """A trainer class keeps both as attributes."""
    after = after_of(
        """\
        import torch
        from torch import nn


        class Trainer:
            def __init__(self, device):
                self.device = torch.device(device)
                self.model = nn.Linear(8, 3).to(self.device)
                self.criterion = nn.CrossEntropyLoss()
                self.optimizer = torch.optim.Adam(self.model.parameters())

            def run(self, loader):
                for x, y in loader:
                    out = self.model(x.to(self.device))
                    loss = self.criterion(out, y.to(self.device))
                    self.optimizer.zero_grad()
                    loss.backward()
                    self.optimizer.step()
        """
    )
    assert '        self.use_amp = self.device.type == "cuda"\n        self.amp_dtype = torch.bfloat16 if self.use_amp and' in after
    assert '            with torch.autocast("cuda", dtype=self.amp_dtype, enabled=self.use_amp):\n                out = self.model' in after
    assert (
        "            self.scaler.scale(loss).backward()\n            self.scaler.step(self.optimizer)\n            self.scaler.update()\n"
        in after
    )


def test_an_optimizer_that_two_branches_make_has_one_scaler_behind_both() -> None:
    """The set-up follows the whole choice."""
    adam, sgd = "torch.optim.Adam(model.parameters())", "torch.optim.SGD(model.parameters(), lr=0.1)"
    text = program(optimizer=f"None\nif fast:\n    optimizer = {sgd}\nelse:\n    optimizer = {adam}")
    assert f"    optimizer = torch.optim.Adam(model.parameters())\n{SET_UP}" in after_of(text)


def test_two_loops_share_the_scaler_of_their_optimizer() -> None:
    """The set-up is written once."""
    again = "for x, y in batches():\n    x, y = x.to(device), y.to(device)\n" + indent(STEP, "    ")
    after = after_of(program() + again)
    assert after.count("GradScaler(") == 1
    assert after.count("scaler.update()") == 2


# Schedules and checkpoints -------------------------------------------------------------------------------------------


def test_a_schedule_that_counts_its_steps_does_not_count_skipped_ones() -> None:
    """OneCycleLR raises when it is stepped too often and ends early when it is not guarded."""
    schedule = "schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=8)\n"
    check_transformed(
        RULE,
        program(STEP + "schedule.step()\n", set_up=schedule),
        program(
            f"optimizer.zero_grad()\n{REGION}\n    loss = criterion(model(x), y)\nscaler.scale(loss).backward()\nscaler.step(optimizer)\n"
            "scale = scaler.get_scale()\nscaler.update()\nif scaler.get_scale() >= scale:\n    schedule.step()\n",
            set_up=SET_UP + schedule,
        ),
    )


def test_another_schedule_per_step_stays_and_is_told() -> None:
    """Its calls keep their order, and the user reads what a skipped step means."""
    text = program(STEP + "schedule.step()\n", set_up="schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)\n")
    result = run_transform(RULE, text)
    assert "scaler.update()\n    schedule.step()\n" in result.after.decode()
    assert any("schedule" in words for words in result.notes[0].notes)


CHECKPOINT = """\
if resume:
    state = torch.load(resume)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
"""


def test_the_scalers_state_joins_the_optimizers() -> None:
    """Saved beside it, and loaded from new files only."""
    text = program(set_up=CHECKPOINT) + 'torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")\n'
    result = run_transform(RULE, text)
    after = result.after.decode()
    assert (
        '    optimizer.load_state_dict(state["optimizer"])\n    if state.get("scaler"):\n        scaler.load_state_dict(state["scaler"])\n'
        in after
    )
    assert '"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}, "last.pt")' in after
    assert result.notes[0].effects == ("numerics", "checkpoint")
    assert result.notes[0].risk == "behavior"


def test_a_state_that_cannot_be_saved_is_not_loaded_either() -> None:
    """Nothing would ever be there to load, and the user is told what a resumed run goes without."""
    text = program(set_up=CHECKPOINT) + 'torch.save(dict(model=model.state_dict(), optimizer=optimizer.state_dict()), "last.pt")\n'
    result = run_transform(RULE, text)
    assert "scaler.load_state_dict" not in result.after.decode()
    assert result.notes[0].effects == ("numerics",)
    assert any("resumed" in words for words in result.notes[0].notes)


def test_a_dictionary_keeps_its_own_layout() -> None:
    """One entry a line stays one entry a line."""
    text = program() + "torch.save({\n    'optimizer': optimizer.state_dict(),\n    'epoch': 1,\n}, 'last.pt')\n"
    assert "    'epoch': 1,\n    'scaler': scaler.state_dict(),\n}, 'last.pt')" in after_of(text)


@pytest.mark.parametrize(
    "save",
    [
        pytest.param("torch.save({'o': optimizer.state_dict()  # all of it\n}, 'p')\n", id="with a comment inside"),
        pytest.param("torch.save(dict(o=optimizer.state_dict()), 'p')\n", id="no literal"),
        pytest.param("torch.save({**extra, 'o': optimizer.state_dict()}, 'p')\n", id="with other entries unpacked"),
    ],
)
def test_checkpoints_of_another_form_are_told(save: str) -> None:
    """The file still gets mixed precision, and the user reads that the scaler's state is not saved."""
    result = run_transform(RULE, program() + save)
    assert result.outcome is Outcome.CHANGED
    assert save in result.after.decode()
    assert any("not saved" in words for words in result.notes[0].notes)


# Field cases ---------------------------------------------------------------------------------------------------------

SEEN = """\
import torch
from torch import nn

model = nn.Linear(8, 3).cuda()
crit = nn.CrossEntropyLoss()
"""


def test_f01_clipping_sees_true_gradients() -> None:
    """The clip call comes behind the one unscale_."""
    after = after_of(program(CLIPPED))
    assert after.index("scaler.unscale_(optimizer)") < after.index("clip_grad_norm_") < after.index("scaler.step(optimizer)")
    assert after.count("unscale_") == 1


def test_f03_the_schedule_is_guarded_and_never_moved() -> None:
    """The order of step and schedule stays as it was."""
    after = after_of(
        f"""{SEEN}\
opt = torch.optim.SGD(model.parameters(), lr=0.1)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=8)
for x, y in loader:
    opt.zero_grad()
    crit(model(x.cuda()), y.cuda()).backward()
    opt.step()
    sched.step()
"""
    )
    step, update, guard = (after.index(words) for words in ("scaler.step(opt)", "scaler.update()", "if scaler.get_scale() >= scale:"))
    assert step < update < guard < after.index("    sched.step()")


def test_f05_bce_of_probabilities_is_held() -> None:
    """Merging it with the sigmoid is another rule's work."""
    network = NETWORK.replace("return self.layers(x)", "return torch.sigmoid(self.layers(x))")
    check_held(
        RULE,
        program("optimizer.zero_grad()\nloss = nn.BCELoss()(model(x), y)\nloss.backward()\noptimizer.step()\n", network=network),
        "bce-loss",
    )


def test_f07_a_mask_value_too_large_for_half_is_held() -> None:
    """The reason names the line of the literal, also in a function that the network calls."""
    network = "def attend(w, mask):\n    return w.masked_fill(mask == 0, -1e9).softmax(-1)\n\n\n" + layers("h = attend(h, x)")
    note = check_held(RULE, program(network=network), "half-overflow")
    assert note.reason is not None
    assert note.reason.text.startswith("train.py:9:")


def test_f09_a_pass_without_gradients_through_the_same_network_has_a_region_of_its_own() -> None:
    """Weights that were cast without gradients must not be reused with them."""
    changed(
        """
        with torch.no_grad():
            soft = model(x).softmax(-1)
        loss = criterion(model(x), y) + (soft - model(x).softmax(-1)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        """,
        """
        with autocast:
            with torch.no_grad():
                soft = model(x).softmax(-1)
        with autocast:
            loss = criterion(model(x), y) + (soft - model(x).softmax(-1)).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        """,
    )


def test_f09_a_teacher_of_its_own_may_share_the_region() -> None:
    """Two networks share no cast weights."""
    changed(
        """
        with torch.no_grad():
            soft = teacher(x).argmax(-1)
        loss = criterion(model(x), soft)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        """,
        """
        with autocast:
            with torch.no_grad():
                soft = teacher(x).argmax(-1)
            loss = criterion(model(x), soft)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        """,
        model="Net().to(device)\nteacher = Net().to(device)",
    )


def test_f11_closures_are_held() -> None:
    """LBFGS calls the loss several times inside its step."""
    check_held(
        RULE,
        f"""{SEEN}\
opt = torch.optim.LBFGS(model.parameters())
for x, y in loader:
    loss = crit(model(x.cuda()), y.cuda())
    loss.backward()
    opt.step(lambda: loss)
    opt.zero_grad()
""",
        "closure",
    )


def test_f13_the_scaler_is_saved_and_old_files_still_load() -> None:
    """The new key is never indexed unless it is there and not empty."""
    after = after_of(program(set_up=CHECKPOINT) + 'torch.save({"optimizer": optimizer.state_dict()}, "last.pt")\n')
    assert after.count('state["scaler"]') == 1
    assert 'if state.get("scaler"):' in after


def test_f15_the_switch_is_made_of_the_device_variable() -> None:
    """A run on the CPU, or on another accelerator, keeps working."""
    assert 'use_amp = device.type == "cuda"' in after_of(program())


def test_names_that_are_set_as_texts_are_not_used() -> None:
    """What ``setattr`` or ``globals()`` may set is taken too; a text that nothing sets is no name."""
    read = program(set_up="names = ['scaler', 'use_amp']\n")
    assert "scaler.step(optimizer)" in after_of(read)
    after = after_of(read.replace("names =", "globals()['amp_dtype'] = 1\nnames ="))
    assert "grad_scaler.step(optimizer)" in after
    assert "dtype=autocast_dtype, enabled=amp_enabled" in after


def test_f89_names_that_are_taken_are_not_used() -> None:
    """A scaler is often a scikit-learn object, and a checkpoint may hold it."""
    taken = "scaler = StandardScaler()\nuse_amp = 'yes'\nstate = {'scaler': scaler}\n"
    after = after_of(program(set_up=taken) + "torch.save({'optimizer': optimizer.state_dict()}, 'last.pt')\n")
    assert "grad_scaler = torch.amp.GradScaler(" in after
    assert "amp_enabled = device.type" in after
    assert "'grad_scaler': grad_scaler.state_dict()" in after
    assert "grad_scaler.scale(loss).backward()" in after


# The rewritten programs, executed -------------------------------------------------------------------------------------

RUN = {
    "plain": program(),
    "clipped": program(CLIPPED.replace("1.0)", "0.5)"), optimizer="torch.optim.SGD(model.parameters(), lr=0.5)"),
    "accumulated": program(
        "loss = criterion(model(x), y) / 2\nloss.backward()\nif i % 2 == 1:\n    nn.utils.clip_grad_norm_(model.parameters(), 0.05)\n"
        "    optimizer.step()\n    optimizer.zero_grad()\n"
    ),
    "nameless": program(
        "optimizer.zero_grad()\nloss = model.layers[0].weight.detach().sum()\ncriterion(model(x), y).backward()\noptimizer.step()\n"
    ),
    "loss by hand": program(STEP.replace("loss = criterion(model(x), y)", "out = model(x)\nloss = ((out - F.one_hot(y, 3)) ** 2).mean()")),
    "scheduled": program(
        STEP + "schedule.step()\n", set_up="schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=8)\n"
    ),
    "handed on": TRAIN.replace("[]", "list(batches())")
    .replace("def train", program()[program().index("def batches") : program().index("torch.manual_seed")] + "def train")
    .replace("            optimizer.step()\n", "            optimizer.step()\n            print(repr(loss.item()))\n")
    .replace("    model = nn", "    torch.manual_seed(3)\n    model = nn")
    + "\n\nmain()\n",
}


DRIVER = """\
import runpy
import warnings
from pathlib import Path

warnings.simplefilter("error", UserWarning)
for path in sorted(Path(__file__).parent.glob("script*.py")):
    print("script")
    runpy.run_path(str(path), run_name="__main__")
"""


def together(folder: Path, texts: Iterable[str]) -> Path:
    """One script that runs several, so that they share a process."""
    folder.mkdir()
    for index, text in enumerate(texts):
        (folder / f"script{index}.py").write_text(text)
    driver = folder / "all.py"
    driver.write_text(DRIVER)
    return driver


def numbers(text: str) -> list[list[float]]:
    """The numbers that each script printed."""
    return [[float(word) for word in part.split()] for part in text.split("script")[1:]]


def test_on_the_cpu_the_rewritten_scripts_train_bit_for_bit_as_before(tmp_path: Path) -> None:
    """With autocast and scaler switched off nothing is different, and nothing warns."""
    before = run_on_cpu(together(tmp_path / "before", RUN.values()))
    after = run_on_cpu(together(tmp_path / "after", [after_of(text) for text in RUN.values()]))
    assert len(numbers(before)) == len(RUN)
    assert after == before


@pytest.mark.parametrize("capability", [pytest.param("7.5", id="float16"), pytest.param("8.0", id="bfloat16")])
def test_on_a_gpu_the_rewritten_scripts_train_in_half_precision(capability: str, tmp_path: Path) -> None:
    """With float16 and a scaler before Ampere, with bfloat16 since, they learn nearly the same; clipping needs true gradients."""
    skip_on_cuda_build()
    old = numbers(run_on_fake_gpu(together(tmp_path / "before", RUN.values()), capability=capability)[0])
    rewritten = [after_of(text) for text in RUN.values()]
    mutant = after_of(RUN["clipped"]).replace("    scaler.unscale_(optimizer)\n", "")
    *new, wrong = numbers(run_on_fake_gpu(together(tmp_path / "after", [*rewritten, mutant]), capability=capability)[0])
    for name, was, now in zip(RUN, old, new):
        assert now == pytest.approx(was, rel=0.03, abs=0.03), name
        assert now != was, f"{name} is no different: is it in half precision?"
    clipped = old[list(RUN).index("clipped")]
    assert (wrong == pytest.approx(clipped, rel=0.03, abs=0.03)) is (capability == "8.0"), "clipping scaled gradients goes wrong in float16"


def test_the_structure_also_trains_in_bfloat16_on_the_cpu(tmp_path: Path) -> None:
    """With the region turned to the CPU and its scaler switched on, clipped steps stay close to float32."""
    text = after_of(RUN["clipped"]).replace('use_amp = device.type == "cuda"', "use_amp = True")
    text = text.replace('torch.autocast("cuda", dtype=amp_dtype', 'torch.autocast("cpu", dtype=torch.bfloat16')
    text = text.replace("torch.cuda.get_device_capability()[0] >= 8", "False").replace('GradScaler("cuda"', 'GradScaler("cpu"')
    was, now = numbers(run_on_cpu(together(tmp_path / "both", [RUN["clipped"], text])))
    assert now == pytest.approx(was, rel=0.03, abs=0.03)
    assert now != was


def test_a_batch_that_overflows_leaves_the_parameters_alone(tmp_path: Path) -> None:
    """The scaler skips the step, halves its scale and goes on."""
    skip_on_cuda_build()
    script = tmp_path / "overflow.py"
    step = STEP.replace("loss.backward()", "if i == 0:\n    loss = loss * float('inf')\nloss.backward()")
    script.write_text(
        after_of(program(step, set_up="first = sum(p.sum().item() for p in model.parameters())\n")).replace(
            "    print(repr(loss.item()))\n", "    print(scaler.get_scale(), sum(p.sum().item() for p in model.parameters()) == first)\n"
        )
    )
    lines = run_on_fake_gpu(script, capability="7.5")[0].splitlines()
    assert lines[:2] == ["32768.0 True", "32768.0 False"]


OLD = """\
for epoch in range(2):
    with torch.no_grad():
        old = torch.stack([model(x.to(device)).log_softmax(-1) for x, y in batches()])
    for i, (x, y) in enumerate(batches()):
        x, y = x.to(device), y.to(device)
        new = model(x).log_softmax(-1)
        loss = F.kl_div(new, old[i], log_target=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("old", "told"),
    [
        pytest.param("with torch.no_grad():", True, id="by the network itself"),
        pytest.param("teacher = Net().to(device)\n    with torch.no_grad():", False, id="by another one"),
    ],
)
def test_a_loss_on_what_the_same_network_gave_before_in_float32_is_told(old: str, told: bool) -> None:
    """In reinforcement learning the ratio of two probabilities becomes that of two precisions too."""
    body = OLD.replace("with torch.no_grad():", old)
    if not told:
        body = body.replace("stack([model(", "stack([teacher(")
    result = run_transform(RULE, program().split("for i, ", 1)[0] + body)
    (note,) = result.notes
    assert "autocast" in result.after.decode()
    assert any(words.startswith("old stems from") for words in note.notes) == told
