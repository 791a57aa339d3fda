"""loss-graph-kept: which sums and lists of losses let their graphs go, which are losses in the making, and which are held."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

import pytest

from tests.running import run_on_cpu, run_on_fake_gpu
from torchfix import registry
from torchfix.testing import check_held, check_noop, check_transformed, run_transform

RULE = "loss-graph-kept"
HEAD = """\
import torch
from torch import nn
import torch.nn.functional as F

net = nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
total, losses, log, history = 0, [], {"loss": 0.0, "all": []}, []
"""
STEP = """\
for x, y in batches:
    optimizer.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    optimizer.step()
"""


def looped(text: str, behind: str = "") -> str:
    """Some lines at the end of a training step, and some behind the loop."""
    return HEAD + STEP + indent(dedent(text), "    ") + "\n" + dedent(behind) + "\n"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("total += loss.item()", id="a number"),
        pytest.param("total += float(loss)", id="a number by float"),
        pytest.param("total += loss.detach()", id="detached"),
        pytest.param("total += loss.data", id="data"),
        pytest.param("total += loss.detach().double()", id="on the device, in double precision"),
        pytest.param("losses.append(loss.item())", id="a list of numbers"),
        pytest.param("total += y.sum()", id="of the batch alone"),
        pytest.param("total += len(x)", id="a count"),
        pytest.param("print(loss)", id="printed"),
        pytest.param("last = loss", id="the last one alone"),
        pytest.param("step_losses = []\nstep_losses.append(loss)\nprint(step_losses)", id="a list of one step"),
        pytest.param("step_total = 0\nstep_total += loss\nprint(step_total)", id="a sum of one step"),
    ],
)
def test_left_alone(text: str) -> None:
    """Numbers, detached losses and what does not outlive a step keep no graph."""
    check_noop(RULE, looped(text, "print(total, losses)"))


def test_trap_a_loss_in_the_making_is_left_alone() -> None:
    """Trap 1: ``loss += dice`` has the same shape, and is trained on."""
    text = """
    for x, y in batches:
        optimizer.zero_grad()
        out = net(x)
        loss = F.mse_loss(out, y)
        loss += F.l1_loss(out, y)
        loss = loss + 0.1 * out.pow(2).mean()
        loss.backward()
        optimizer.step()
    """
    check_noop(RULE, HEAD + dedent(text))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            """
            for batch in batches:
                loss, hidden = 0, None
                for x, y in batch:
                    loss += F.mse_loss(net(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            """,
            id="truncated backpropagation through time",
        ),
        pytest.param(
            """
            def unroll(batch):
                loss = 0
                for x, y in batch:
                    loss = loss + F.mse_loss(net(x), y)
                return loss

            for batch in batches:
                unroll(batch).backward()
                optimizer.step()
            """,
            id="a rollout in a function of its own",
        ),
        pytest.param(
            """
            for batch in batches:
                policy_losses = []
                for x, y in batch:
                    policy_losses.append(-net(x) * y)
                optimizer.zero_grad()
                loss = torch.stack(policy_losses).sum()
                loss.backward()
                optimizer.step()
                del policy_losses[:]
            """,
            id="policy gradients",
        ),
        pytest.param(
            """
            outer = 0
            for task in tasks:
                fast = [p.clone() for p in net.parameters()]
                loss = F.mse_loss(F.linear(task.x, *fast), task.y)
                grads = torch.autograd.grad(loss, fast, create_graph=True)
                outer += F.mse_loss(F.linear(task.qx, *[p - g for p, g in zip(fast, grads)]), task.qy)
            outer.backward()
            optimizer.step()
            """,
            id="meta learning",
        ),
    ],
)
def test_trap_sums_over_steps_that_are_trained_on_are_left_alone(text: str) -> None:
    """Trap 2: what is summed over time, tasks or samples and sent backward behind the loop."""
    check_noop(RULE, HEAD + dedent(text))


def test_trap_an_accumulated_loss_is_left_alone() -> None:
    """Trap 3: the sum itself goes backward on every fourth step."""
    text = """
    for i, (x, y) in enumerate(batches):
        total += F.mse_loss(net(x), y)
        if i % 4 == 3:
            total.backward()
            optimizer.step()
            optimizer.zero_grad()
            total = 0
    """
    check_noop(RULE, HEAD + dedent(text))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("losses.append(loss)\n(sum(losses) / len(losses)).backward()", id="a mean of the list"),
        pytest.param('log["all"].append(loss)\ntorch.stack(log["all"]).mean().backward()', id="a list in a dictionary"),
        pytest.param("history.append((loss, x))\nfor kept, _ in history:\n    kept.backward(retain_graph=True)", id="pairs in a list"),
        pytest.param('total += loss\nif total.requires_grad:\n    print("training")', id="asked for its graph"),
        pytest.param("total += loss\ntorch.autograd.grad(total, net.weight)", id="gradients by hand"),
    ],
)
def test_trap_what_reaches_a_backward_pass_elsewhere_is_left_alone(text: str) -> None:
    """Trap 4: far from where it was kept, through lists and dictionaries."""
    check_noop(RULE, looped(text))


def test_trap_an_attribute_that_another_method_sends_backward_is_left_alone() -> None:
    """Trap 5: ``self.loss`` is read by another method of the class."""
    text = """
    class Trainer:
        def collect(self):
            for x, y in batches:
                loss = F.mse_loss(net(x), y)
                loss.backward(retain_graph=True)
                self.loss += loss

        def update(self):
            self.loss.backward()
            optimizer.step()
    """
    check_noop(RULE, HEAD + dedent(text))


def test_trap_a_sum_that_begins_as_the_first_loss_is_written_anew() -> None:
    """Trap 6: adding in place would write into that loss, whose memory a detached tensor shares."""
    before = """
    total = None
    for x, y in batches:
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        if total is None:
            total = loss
        else:
            total += loss / 2
    print(float(total))
    """
    after = before.replace("total = loss", "total = loss.detach()").replace("total += loss / 2", "total = total + loss.detach() / 2")
    check_transformed(RULE, HEAD + dedent(before), HEAD + dedent(after))
    check_held(RULE, HEAD + dedent(before.replace("print(float(total))", "history.append(total)")), "aliased-total")


def test_trap_a_sum_that_begins_as_a_trained_loss_is_left_alone() -> None:
    """Trap 6: the first tensor is the loss of the last inner step, which goes backward under the same name."""
    text = """
    loss = torch.zeros(1)
    for support, query in batches:
        for x, y in support:
            loss = F.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
        loss += F.mse_loss(net(query), query)
    print(loss)
    """
    check_noop(RULE, HEAD + dedent(text))


def test_trap_a_regulariser_is_left_alone() -> None:
    """Trap 8: a sum of norms of weights is a loss."""
    text = """
    for x, y in batches:
        penalty = 0
        for p in net.parameters():
            penalty += p.norm()
        (F.mse_loss(net(x), y) + penalty).backward()
        optimizer.step()
    """
    check_noop(RULE, HEAD + dedent(text))


def test_trap_without_gradients_nothing_is_kept() -> None:
    """Trap 9: under ``no_grad`` a loss has no graph."""
    text = """
    with torch.no_grad():
        total += F.mse_loss(net(x), y)
    """
    check_noop(RULE, looped(text, "print(total)"))


def test_generator_and_discriminator_losses_are_left_alone() -> None:
    """The two losses of a GAN are sums that are trained on, whatever else is logged."""
    text = """
    for real in batches:
        d_loss = 0
        for scale in (1, 2):
            d_loss += F.relu(1 - net(real)).mean()
        d_loss.backward()
        optimizer.step()
        g_loss = -net(real).mean()
        g_loss = g_loss + 0.1 * real.mean()
        g_loss.backward()
        optimizer.step()
        history.append(g_loss.item())
    """
    check_noop(RULE, HEAD + dedent(text))


@pytest.mark.parametrize(
    ("text", "behind", "code"),
    [
        pytest.param("total += loss", "plot(total)", "out-of-sight", id="handed to code out of sight"),
        pytest.param("losses.append(loss)", "library.report(losses)", "out-of-sight", id="a list handed on"),
    ],
)
def test_held_where_the_readers_are_out_of_sight(text: str, behind: str, code: str) -> None:
    """What is handed to a function that is not known may be sent backward there."""
    check_held(RULE, looped(text, f"from unknown import plot, library\n{behind}"), code)


def test_held_where_the_sum_is_returned_to_nobody_in_sight() -> None:
    """Trap 4: a library's function returns its total to whoever calls it."""
    check_held(RULE, HEAD + "def epoch(total, batches):\n" + indent(STEP + "    total += loss\nreturn total\n", "    "), "out-of-sight")


def test_held_where_the_loss_may_be_a_number() -> None:
    """A plain number has no ``detach``."""
    text = """
    for x, y in batches:
        loss = 0
        if len(x):
            loss = F.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
        total += loss
    print(total)
    """
    check_held(RULE, HEAD + dedent(text), "maybe-number")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("total += loss", "total += loss.detach()", id="sum"),
        pytest.param("total = total + loss", "total = total + loss.detach()", id="sum written out"),
        pytest.param("total = loss + total", "total = loss.detach() + total", id="sum the other way round"),
        pytest.param("total += loss * len(x)", "total += loss.detach() * len(x)", id="weighted"),
        pytest.param("total += F.l1_loss(net(x), y)", "total += F.l1_loss(net(x), y).detach()", id="a metric made on the spot"),
        pytest.param("losses.append(loss)", "losses.append(loss.detach())", id="list"),
        pytest.param("losses += [loss]", "losses += [loss.detach()]", id="list by addition"),
        pytest.param("history.append((loss, len(x)))", "history.append((loss.detach(), len(x)))", id="pairs"),
        pytest.param('history.append({"loss": loss})', 'history.append({"loss": loss.detach()})', id="dictionaries"),
        pytest.param('log["loss"] += loss', 'log["loss"] += loss.detach()', id="entry of a dictionary"),
        pytest.param('log["all"].append(loss)', 'log["all"].append(loss.detach())', id="list in a dictionary"),
    ],
)
def test_detached(before: str, after: str) -> None:
    """What is kept and only printed lets its graph go."""
    behind = 'print(total, sum(losses), log["loss"], log["all"], history, float(total))'
    check_transformed(RULE, looped(before, behind), looped(after, behind))


def test_f51_a_running_sum_of_an_epoch() -> None:
    """F51: the loss itself stays, for the backward pass; the sum gets its number."""
    before = """
    import torch

    def epoch(model, dl, opt, crit):
        total = 0
        for x, y in dl:
            opt.zero_grad()
            loss = crit(model(x), y)
            loss.backward()
            opt.step()
            total += loss
        print(total / len(dl))
    """
    (note,) = check_transformed(RULE, before, before.replace("+= loss", "+= loss.detach()"))
    assert note.risk == "exact"


def test_a_total_that_callers_only_print_is_followed_to_them() -> None:
    """Returned, unpacked, divided and printed, in another file."""
    before = """
    import torch.nn.functional as F

    def epoch(net, optimizer, batches):
        total, seen = 0, 0
        for x, y in batches:
            loss = F.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
            total += loss
            seen += len(x)
        return total / seen, seen
    """
    main = "from engine import epoch\n\nmean, seen = epoch(net, optimizer, batches)\n"
    check_transformed(
        RULE, before, before.replace("+= loss", "+= loss.detach()"), path="engine.py", modules={"main.py": f"{main}print(mean, seen)\n"}
    )
    check_noop(RULE, before, path="engine.py", modules={"main.py": f"{main}(mean * 2).backward()\n"})


METER = """
class Meter:
    def __init__(self):
        self.sum, self.count, self.average = 0, 0, 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n
        self.average = self.sum / self.count
"""


def test_a_meter_is_given_the_number() -> None:
    """An object of the project that adds up what it is given; detached where it is given."""
    text = looped("meter.update(loss, len(x))\nprint(meter.average)").replace("for x", f"{METER}\nmeter = Meter()\nfor x", 1)
    check_transformed(RULE, text, text.replace("update(loss,", "update(loss.detach(),"))
    check_noop(RULE, text.replace("print(meter.average)", "meter.average.backward()"))
    check_noop(RULE, text.replace("value * n", "value.item() * n"))


def test_an_attribute_that_is_only_printed_is_detached() -> None:
    """A trainer's own running loss."""
    before = """
    class Trainer:
        running = 0.0

        def step(self, x, y):
            loss = F.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
            self.running += loss

        def report(self):
            print(f"{self.running:.3f}")
            self.running = 0.0
    """
    check_transformed(RULE, HEAD + dedent(before), HEAD + dedent(before.replace("+= loss", "+= loss.detach()")))


@pytest.mark.parametrize("rules", [(RULE, "metric-on-device"), ("metric-on-device", RULE)], ids=" first, then ".join)
def test_metrics_on_the_device_and_detached_losses_go_together(rules: tuple[str, str]) -> None:
    """A sum of losses is ours, a sum of ``item()`` the other rule's; neither sees anything in what the other wrote."""
    text = looped("total += loss\nseen += loss.item()", "print(total, seen)").replace("net = ", "seen = 0.0\nnet = ", 1)
    text = text.replace("net(x)", "net(x.cuda())").replace("nn.Linear(2, 1)", "nn.Linear(2, 1).cuda()")
    for rule in rules:
        text = run_transform(rule, text).after.decode() or text
    assert "total += loss.detach()\n" in text
    for rule in rules:
        check_noop(rule, text)


SCRIPT = """
import gc
import torch
from torch import nn
import torch.nn.functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
kept = []


class Pack:
    living = 0

    def __init__(self, tensor):
        self.tensor = tensor.detach()  # else an output would hold its own graph
        Pack.living += 1

    def __del__(self):
        Pack.living -= 1


total, errors = 0.0, []
with torch.autograd.graph.saved_tensors_hooks(Pack, lambda pack: pack.tensor):
    for step in range(4):
        x = torch.arange(6.0).view(2, 3).to(device) * 0.1 + step
        out = net(x)
        loss = out.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss
        errors.append(F.l1_loss(net(x), x[:, :1]))
        gc.collect()
        kept.append(Pack.living)
print(f"{float(total):.9f}", [f"{float(error):.9f}" for error in errors])
print([f"{value:.9f}" for p in net.parameters() for value in p.detach().flatten().tolist()])
"""


def fixed_script() -> str:
    """The script as the rule writes it."""
    after = run_transform(RULE, SCRIPT).after.decode()
    assert "total += loss.detach()" in after
    assert "errors.append(F.l1_loss(net(x), x[:, :1]).detach())" in after
    return after


@pytest.mark.parametrize("run", [lambda path: run_on_cpu(path), lambda path: run_on_fake_gpu(path)[0]], ids=["cpu", "fakegpu"])
def test_parameters_and_numbers_stay_and_memory_no_longer_grows(run: object, tmp_path: Path) -> None:
    """Bit-equal parameters and totals, and as many tensors kept for a backward pass after each step as after the first."""
    (tmp_path / "before.py").write_text(SCRIPT + "print(kept)\n")
    (tmp_path / "after.py").write_text(fixed_script() + "print(kept)\n")
    *numbers, grown = run(tmp_path / "before.py").splitlines()  # type: ignore[operator]
    *same, steady = run(tmp_path / "after.py").splitlines()  # type: ignore[operator]
    assert numbers == same
    before, after = (list(map(int, line.strip("[]").split(","))) for line in (grown, steady))
    assert before == sorted(set(before)), "it grew with every step"
    assert len(set(after)) == 1


def test_example_of_the_rule_runs_the_same(tmp_path: Path) -> None:
    """What the rule prints as Before and After is what it does, and prints the same number."""
    rule = registry.find(RULE)
    check_transformed(RULE, rule.before, rule.after)
    (tmp_path / "before.py").write_text("import torch\ntorch.manual_seed(0)\n" + rule.before)
    (tmp_path / "after.py").write_text("import torch\ntorch.manual_seed(0)\n" + rule.after)
    assert run_on_cpu(tmp_path / "before.py") == run_on_cpu(tmp_path / "after.py")


def test_a_sum_that_begins_as_a_tensor_which_is_read_later_is_held() -> None:
    """Adding in place also changes the tensor that the sum began as, which a print behind the loop shows."""
    text = HEAD + "first = F.mse_loss(net(a), b)\ntotal = first\n" + STEP + "    total += loss\nprint(first.item(), total.item())\n"
    check_held(RULE, text, "aliased-total")


def test_a_loss_of_its_own_kind_is_held() -> None:
    """An object of the project that has ``backward`` need not have ``detach``."""
    kind = (
        "class Weighted:\n    def __init__(self, value):\n        self.value = value\n"
        "    def backward(self):\n        self.value.backward()\n"
    )
    step = STEP.replace("F.mse_loss(net(x), y)", "Weighted(F.mse_loss(net(x), y))")
    check_held(RULE, HEAD + kind + step + "    total += loss\nprint(float(total))\n", "maybe-number")


@pytest.mark.parametrize(
    "behind",
    [
        pytest.param("list(map(torch.Tensor.backward, losses))", id="by map"),
        pytest.param("holder.all = losses\nfor name in ['all']:\n    sum(getattr(holder, name)).backward()", id="by an attribute's name"),
    ],
)
def test_lists_that_are_sent_backward_in_a_roundabout_way_stay(behind: str) -> None:
    """Losses that are sent backward behind the loop keep their graphs."""
    check_noop(RULE, looped("losses.append(loss)", behind))


def test_a_sum_with_another_name_that_is_sent_backward_stays() -> None:
    """Two names of one tensor show the same sum."""
    check_noop(RULE, HEAD + "total = both = torch.zeros(())\n" + STEP + "    total += loss\nboth.backward()\n")


def test_a_meter_whose_mean_is_a_property_lets_go() -> None:
    """What a property gives is followed to the places that read it."""
    meter = (
        "class Meter:\n    def __init__(self):\n        self.sum = 0\n    def update(self, value):\n        self.sum += value\n"
        "    @property\n    def mean(self):\n        return self.sum / 9\nmeter = Meter()\n"
    )
    before = HEAD + meter + STEP + "    meter.update(loss)\nprint(float(meter.mean))\n"
    check_transformed(RULE, before, before.replace("meter.update(loss)", "meter.update(loss.detach())"))
