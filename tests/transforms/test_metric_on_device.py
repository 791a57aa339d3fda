"""metric-on-device: which running numbers stay, which are held, which are added up on the device, and that they are the same."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

import pytest

from tests.running import run_on_cpu, run_on_fake_gpu
from torchfix import registry
from torchfix.result import Note, Outcome
from torchfix.testing import check_held, check_noop, check_transformed, run_transform

RULE = "metric-on-device"
HEAD = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
loader = DataLoader(TensorDataset(torch.rand(64, 3), torch.zeros(64, dtype=torch.long)), batch_size=4)
model = nn.Linear(3, 5).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


"""
STEP = """\
x, y = x.to(device), y.to(device)
outputs = model(x)
loss = criterion(outputs, y)
optimizer.zero_grad()
loss.backward()
optimizer.step()
"""

COUNTED = "for i, (x, y) in enumerate(loader):"


def training(begin: str, step: str, end: str, header: str = "for x, y in loader:", head: str = HEAD) -> str:
    """A function that trains: what stands in front of its loop, what each step does behind the update, and what follows."""
    body = f"{begin}\n{header}\n{indent(STEP + step, '    ')}\n{end}"
    return f"{head}def train():\n{indent(body, '    ')}\n"


def changed(
    before: tuple[str, str, str], after: tuple[str, str, str], header: str = "for x, y in loader:", **more: str
) -> tuple[Note, ...]:
    """Check one training function."""
    new = more.pop("new_header", header)
    return check_transformed(RULE, training(*before, header=header, **more), training(*after, header=new, **more))


def test_docstring_examples() -> None:
    """The rule's own Before becomes its After."""
    transform = registry.find(RULE)
    notes = check_transformed(transform, transform.before, transform.after)
    assert [note.risk for note in notes] == ["exact", "exact"]


# What stays --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("begin", "step", "end"),
    [
        pytest.param("n = 0", "n += len(x)", "return n", id="counted on the host"),
        pytest.param("total = 0.0", "total = total + loss.detach().double()", "return float(total)", id="on the device already"),
        pytest.param("total = 0.0", "if loss.grad_fn is None:\n    print(loss)", "return total", id="no sum"),
        pytest.param("total = 0.0", "for i in range(9):\n    total += i", "return total", id="plain numbers"),
        pytest.param("total = 0.0\nstep = 0", "step += 1\nif step % 9 == 0:\n    total += loss.item()", "return total", id="now and then"),
        pytest.param("total = 0.0", "total += y.cpu().numpy().sum()", "return total", id="summed by numpy"),
        pytest.param("total = 0.0", "total += x.size(0)", "return total", id="sizes"),
        pytest.param("", "meter.update(loss.item(), x.size(0))", "", id="trap 11, a meter out of sight"),
        pytest.param("", "if rank == 0:\n    print(loss.item())", "", id="trap 10, printed by one process"),
    ],
)
def test_left_alone(begin: str, step: str, end: str) -> None:
    """Sums that make nobody wait, or not on each step, yield nothing."""
    check_noop(RULE, training(begin, step, end))


def test_program_on_the_host_is_left_alone() -> None:
    """Where no device is used, reading a loss waits for nothing."""
    head = HEAD.replace('torch.device("cuda" if torch.cuda.is_available() else "cpu")', '"cpu"')
    check_noop(RULE, training("total = 0.0", "total += loss.item()", "return total", head=head))


def test_batches_on_the_host_are_left_alone() -> None:
    """What is counted before the batch is copied is in host memory."""
    text = training("hits = 0", "pass", "return hits").replace("x, y = x.to", "hits += (y == 1).sum().item()\n        x, y = x.to")
    check_noop(RULE, text)


# What is held ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("begin", "step", "end", "code"),
    [
        pytest.param("total = start()", "total += loss.item()", "return total", "unknown-start", id="begins out of sight"),
        pytest.param("total = None", "total += loss.item()", "return total", "unknown-start", id="begins with nothing"),
        pytest.param("total = 0.0", "total += loss.item() * weight()", "return total", "unknown-operand", id="times something"),
        pytest.param("total = 0.0", "total += round(loss.item(), 3)", "return total", "host-arithmetic", id="rounded first"),
        pytest.param("total = 0.0", "total += loss.item() ** 2", "return total", "host-arithmetic", id="squared"),
        pytest.param("total = 0.0", "total += 1 / loss.item()", "return total", "host-arithmetic", id="divided by"),
        pytest.param("total = 0.0", "total += score(outputs).item()", "return total", "unknown-value", id="made out of sight"),
        pytest.param("total = 0", "total += outputs[i].item()", "print(total)", "unknown-kind", id="whole or not"),
        pytest.param("total = 0.0", "total += loss.item()\nprint(total)", "return total", "used-each-step", id="printed on each step"),
        pytest.param("total = 0.0", "total += loss.item()\nlog.add(total)", "return total", "used-each-step", id="logged on each step"),
        pytest.param(
            "total, seen = 0.0, []",
            "total += loss.item()\nseen.append(total)",
            "return seen",
            "used-each-step",
            id="trap 1, history of sums",
        ),
        pytest.param("total = 0.0", "total += loss.item()\nif total > 9:\n    save()", "return total", "decides", id="trap 5, a decision"),
        pytest.param("total = 0.0", "total += loss.item()\nassert total < 9", "return total", "decides", id="trap 5, an assertion"),
        pytest.param("total = 0.0", "total += loss.item()\nreport(locals())", "return total", "shared-variable", id="all variables"),
        pytest.param("global total\ntotal = 0.0", "total += loss.item()", "", "shared-variable", id="a variable of the module"),
        pytest.param(
            "total = 0.0\ndef show():\n    print(total)", "total += loss.item()\nshow()", "return total", "shared-variable", id="closure"
        ),
        pytest.param("total = {'loss': 0.0}", "total['loss'] += loss.item()", "return total", "out-of-reach", id="entry"),
        pytest.param("", "meter.total += loss.item()", "", "out-of-reach", id="attribute"),
        pytest.param("", "total = 0.0\ntotal += loss.item()", "", "used-each-step", id="begun anew on each step"),
        pytest.param("", "history['loss'].append(loss.item())", "", "out-of-reach", id="list in a dictionary"),
        pytest.param("losses = past()", "losses.append(loss.item())", "return losses", "unknown-start", id="list from out of sight"),
        pytest.param("losses = []", "losses.append(loss.item())\nprint(losses[-1])", "", "used-each-step", id="list that is read"),
        pytest.param("losses = []\nwatch(losses)", "losses.append(loss.item())", "", "used-each-step", id="list that others hold"),
        pytest.param("losses = []", "losses.append((1, loss.item()))", "return losses", "host-arithmetic", id="pairs"),
        pytest.param(
            "losses = []", "losses.append(score(outputs).item())", "return losses", "unknown-value", id="list of what is not seen"
        ),
        pytest.param(
            "losses = []",
            "if y.any():\n    pass\nlosses.append(loss.item())\nlosses.append((y > 0).sum().item())",
            "return losses",
            "unknown-kind",
            id="list of fractions and counts",
        ),
    ],
)
def test_held(begin: str, step: str, end: str, code: str) -> None:
    """What may differ, or what nothing is gained for, is held with its reason."""
    check_held(RULE, training(begin, step, end), code)


@pytest.mark.parametrize("handling", ["except KeyboardInterrupt:\n    print(total)", "finally:\n    print(total)"])
def test_sum_that_is_used_after_an_exception_is_held(handling: str) -> None:
    """An exception leaves the loop past the place where the sum becomes a number again."""
    text = f"total = 0.0\ntry:\n    for x, y in loader:\n{indent(STEP, '        ')}        total += loss.item()\n{handling}\n"
    check_held(RULE, HEAD + text, "interrupted")


def test_sum_in_front_of_an_exception_that_ends_it_is_changed() -> None:
    """A handler that does not look at the sum does no harm."""
    loop = f"    for x, y in loader:\n{indent(STEP, '        ')}        total += loss.item()\n"
    text = f"total = 0.0\ntry:\n{loop}    print(total)\nexcept OSError:\n    pass\n"
    assert run_transform(RULE, HEAD + text).outcome is Outcome.CHANGED


def test_sum_in_an_if_beside_an_unknown_device_is_held() -> None:
    """MPS has no float64, and a sum that the loop prints now and then cannot wait for the end."""
    head = HEAD.replace('"cuda" if torch.cuda.is_available() else "cpu"', '"mps" if torch.backends.mps.is_available() else "cuda"')
    step = "total += loss.item()\nif i % 9 == 0:\n    print(total)"
    check_held(RULE, training("total = 0.0", step, "return total", header="for i, (x, y) in enumerate(loader):", head=head), "other-device")


# What changes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("total += loss.item()", "total = total + loss.detach().double()", id="loss"),
        pytest.param("total = total + loss.item()", "total = total + loss.detach().double()", id="written out"),
        pytest.param("total += float(loss)", "total = total + loss.detach().double()", id="float"),
        pytest.param("total += loss.cpu().item()", "total = total + loss.detach().double()", id="copied first"),
        pytest.param("total += loss.detach().cpu().item()", "total = total + loss.detach().double()", id="detached and copied first"),
        pytest.param("total += loss.data.item()", "total = total + loss.detach().double()", id="data"),
        pytest.param('total += loss.to("cpu").item()', "total = total + loss.detach().double()", id="moved first"),
        pytest.param("total += loss.item() * x.size(0)", "total = total + loss.detach().double() * x.size(0)", id="times the batch"),
        pytest.param("total += len(x) * loss.item()", "total = total + len(x) * loss.detach().double()", id="the batch times"),
        pytest.param("total += -loss.item() + 1", "total = total + (-loss.detach().double() + 1)", id="arithmetic"),
        pytest.param(
            "loss = 8 * loss\ntotal += loss.item()", "loss = 8 * loss\ntotal = total + loss.detach().double()", id="trap 13, scaled first"
        ),
        pytest.param("total += int(loss)", "total = total + loss.detach().long().double()", id="cut off"),
        pytest.param("total += (loss * 2).item()", "total = total + (loss * 2).detach().double()", id="computed on the device"),
        pytest.param(
            "total += (outputs.argmax(1) == y).sum().item()",
            "total = total + (outputs.argmax(1) == y).sum().double()",
            id="count, from 0.0",
        ),
        pytest.param(
            "total += float(torch.sum(outputs.argmax(1) == y))",
            "total = total + torch.sum(outputs.argmax(1) == y).double()",
            id="count as a float",
        ),
        pytest.param(
            "total += loss.item()  # for the epoch", "total = total + loss.detach().double()  # for the epoch", id="with a comment"
        ),
    ],
)
def test_sums_of_fractions(before: str, after: str) -> None:
    """What is added becomes a float64 tensor without a graph, and the sum a float behind the loop."""
    notes = changed(("total = 0.0", before, "return total"), ("total = 0.0", after, "total = float(total)\nreturn total"))
    assert [note.risk for note in notes] == ["exact"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("(outputs.argmax(1) == y).sum().item()", "(outputs.argmax(1) == y).sum()", id="comparison"),
        pytest.param("outputs.max(1)[1].eq(y).sum().item()", "outputs.max(1)[1].eq(y).sum()", id="method"),
        pytest.param("int((outputs.argmax(1) == y).sum())", "(outputs.argmax(1) == y).sum()", id="int"),
        pytest.param("outputs.argmax(1).eq(y).cpu().sum().item()", "outputs.argmax(1).eq(y).sum()", id="counted on the host"),
        pytest.param("outputs.argmax(1).eq(y).sum().cpu().item()", "outputs.argmax(1).eq(y).sum()", id="copied first"),
        pytest.param("outputs.argmax(1).eq(y).all().item()", "outputs.argmax(1).eq(y).all().long()", id="truth"),
        pytest.param("outputs.argmax(1).int().max().item()", "outputs.argmax(1).int().max().long()", id="narrow whole numbers"),
        pytest.param("2 * (outputs > 0).sum().item()", "2 * (outputs > 0).sum()", id="doubled"),
    ],
)
def test_sums_of_whole_numbers(before: str, after: str) -> None:
    """Counts are added as they are, with 64 bits, and the sum is an int behind the loop: trap 6, it is divided as one."""
    end = "return 100.0 * hits / 64"
    changed(("hits = 0", f"hits += {before}", end), ("hits = 0", f"hits = hits + {after}", f"hits = int(hits)\n{end}"))


def test_count_that_a_variable_holds_in_host_memory() -> None:
    """The copy goes where the variable is made, as long as only its number is read."""
    changed(
        ("hits = 0", "right = outputs.argmax(1).eq(y).cpu().sum()\nhits += right.item()", "return hits"),
        ("hits = 0", "right = outputs.argmax(1).eq(y).sum()\nhits = hits + right", "hits = int(hits)\nreturn hits"),
    )
    check_noop(RULE, training("hits = 0", "right = outputs.argmax(1).eq(y).cpu().sum()\nhits += right.item()\nuse(right)", "return hits"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("value = loss.item()\ntotal += value", "value = loss.detach().double()\ntotal = total + value", id="loss"),
        pytest.param(
            "value = loss.item()\nprint(i)\ntotal += x.size(0) * value",
            "value = loss.detach().double()\nprint(i)\ntotal = total + x.size(0) * value",
            id="times the batch",
        ),
        pytest.param(
            "value = (outputs > 0).sum().item()\ntotal = total + value",
            "value = (outputs > 0).sum().double()\ntotal = total + value",
            id="count, written out",
        ),
    ],
)
def test_number_that_a_variable_only_takes_to_the_sum(before: str, after: str) -> None:
    """The variable holds what is added, on the device."""
    changed(("total = 0.0", before, "return total"), ("total = 0.0", after, "total = float(total)\nreturn total"), header=COUNTED)


def test_number_that_a_variable_only_takes_to_a_list() -> None:
    """The variable holds the tensor that the list keeps for a while."""
    end = "losses = torch.stack(losses).tolist() if losses else []\nreturn losses"
    changed(
        ("losses = []", "value = loss.item()\nlosses.append(value)", "return losses"),
        ("losses = []", "value = loss.detach()\nlosses.append(value)", end),
    )


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("value = loss.item()\ntotal += value\nprint(value)", id="also printed"),
        pytest.param("value = loss.item()\ntotal += value * value", id="used twice"),
        pytest.param("value = loss.item()\nloss *= 2\ntotal += value", id="the tensor is written before"),
        pytest.param("value = loss.item()\nif i:\n    total += value", id="added on some steps"),
        pytest.param("value = 0\nvalue = loss.item()\ntotal += value", id="a variable of two values"),
        pytest.param("value = loss.item()\ntotal += (lambda: value)()", id="used by a function"),
    ],
)
def test_number_that_a_variable_holds_for_more(step: str) -> None:
    """It must be a number wherever it is used."""
    text = training("total = 0.0", step, "return total", header=COUNTED)
    assert run_transform(RULE, text).outcome is Outcome.CLEAN


def test_number_that_a_variable_takes_out_of_reach_is_held() -> None:
    """An attribute of an object can be read by code that is not seen."""
    check_held(RULE, training("", "value = loss.item()\nmeter.total += value", ""), "out-of-reach")


def test_loss_of_unknown_kind_that_is_only_divided() -> None:
    """Where a sum only ever divides, it makes no difference whether it is 3 or 3.0."""
    changed(
        ("total = 0", "total += outputs[i].item()", "return total / 9"),
        ("total = 0", "total = total + outputs[i].detach().double()", "total = float(total)\nreturn total / 9"),
    )


def test_sum_of_several_ways_and_a_start_among_others() -> None:
    """All statements that add to a sum change together; plain numbers and what old torch read stay."""
    before = "if old_torch:\n    pass\nelif new_torch:\n    total += loss.item()\nelse:\n    total += loss.data[0]\ntotal += 1"
    after = (
        "if old_torch:\n    pass\nelif new_torch:\n    total = total + loss.detach().double()\nelse:\n    total += loss.data[0]\ntotal += 1"
    )
    changed(("total, n = 0.0, 0", before, "return total"), ("total, n = 0.0, 0", after, "total = float(total)\nreturn total"))


def test_sum_that_is_partly_added_up_on_the_device_already() -> None:
    """Where another rule, or somebody, changed a part of a sum, the rest follows, and the sum is read once."""
    more = "total = total + loss.detach().double()\nif old_torch:\n    pass\nelse:\n    total"
    changed(
        ("total = 0.0", f"{more} += loss.item()", "total = float(total)\nreturn total"),
        ("total = 0.0", f"{more} = total + loss.detach().double()", "total = float(total)\nreturn total"),
    )


def test_sum_of_two_names_is_held() -> None:
    """The second name would hold a tensor."""
    check_held(RULE, training("total = 0.0", "total += loss.item()\ntotal = last = total + loss.item()", "return last"), "used-each-step")


def test_sum_in_a_method_that_each_step_calls_is_held() -> None:
    """An attribute of an object can be read by code that is not seen."""
    text = training("meter = Meter()", "meter.note(loss)", "return meter.total")
    meter = "class Meter:\n    total = 0.0\n\n    def note(self, loss):\n        self.total += loss.item()\n\n\n"
    check_held(RULE, text.replace("def train", f"{meter}def train"), "out-of-reach")


def test_sum_that_nobody_uses_is_not_read() -> None:
    """Without a use behind the loop there is nothing to turn back into a number."""
    changed(("total = 0.0", "total += loss.item()", ""), ("total = 0.0", "total = total + loss.detach().double()", ""))


def test_division_has_an_effect_on_numerics() -> None:
    """Divided by a number, a tensor may be multiplied with the reciprocal instead, so that the last bit differs."""
    (note,) = changed(
        ("total = 0.0", "total += loss.item() / len(loader)", "return total"),
        ("total = 0.0", "total = total + loss.detach().double() / len(loader)", "total = float(total)\nreturn total"),
    )
    assert note.effects == ("numerics",)
    assert note.notes == ("The device divides by multiplying with the reciprocal, so the last digit of the sum may differ.",)


def test_f49_sum_that_is_logged_every_so_many_steps() -> None:
    """F49: the printed numbers are as before, since the sum is a Python number wherever it is printed."""
    log = 'if i % 50 == 0:\n    log(f"{i} {total / (i + 1):.3f}")'
    changed(
        ("total = 0.0", f"total += loss.item()\n{log}", "return total / len(loader)"),
        (
            "total = 0.0",
            f"total = total + loss.detach().double()\n{log.replace('    log', '    total = float(total)' + chr(10) + '    log')}",
            "total = float(total)\nreturn total / len(loader)",
        ),
        header=COUNTED,
    )


def test_f51_no_graph_is_kept() -> None:
    """F51: a sum on the device never holds a graph."""
    result = run_transform(RULE, training("total = 0.0", "total += loss.item()", "return total"))
    assert ".detach()" in result.after.decode()


@pytest.mark.parametrize(
    "guard",
    [
        "if i % 10 == 9:",
        "if (i + 1) % 10 == 0 and i > 0:",
        "if not i % 10:",
        "if i == len(loader) - 1:",
        "if i % 10 == 0 or i + 1 == len(loader):",
    ],
)
def test_sum_begun_anew_behind_each_print(guard: str) -> None:
    """A sum that is printed and begun anew every so many steps is a number where it is printed."""
    changed(
        ("total = 0.0", f"total += loss.item()\n{guard}\n    print(total / 10)\n    total = 0.0", ""),
        (
            "total = 0.0",
            f"total = total + loss.detach().double()\n{guard}\n    total = float(total)\n    print(total / 10)\n    total = 0.0",
            "",
        ),
        header=COUNTED,
    )


def test_sum_that_is_returned_from_within() -> None:
    """A block that leaves the loop runs once."""
    changed(
        ("total = 0.0", "total += loss.item()\nif x.size(0) < 4:\n    total /= 9\n    return total", ""),
        (
            "total = 0.0",
            "total = total + loss.detach().double()\nif x.size(0) < 4:\n    total = float(total)\n    total /= 9\n    return total",
            "",
        ),
    )


# Lists -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("losses.append(loss.item())", "losses.append(loss.detach())", id="append"),
        pytest.param("losses += [loss.item()]", "losses += [loss.detach()]", id="added"),
        pytest.param("losses.append(float(loss))", "losses.append(loss.detach())", id="float"),
        pytest.param("losses.append((outputs > 0).sum().item())", "losses.append((outputs > 0).sum())", id="counts"),
        pytest.param("losses.append(float((outputs > 0).sum()))", "losses.append((outputs > 0).sum().double())", id="counts as floats"),
        pytest.param("losses.append(0.5 * loss.item())", "losses.append(0.5 * loss.detach().double())", id="arithmetic"),
    ],
)
def test_lists_are_read_at_once(before: str, after: str) -> None:
    """A list holds tensors until the loop is through, and then the numbers of all of them, read at once."""
    end = "losses = torch.stack(losses).tolist() if losses else []\nreturn sum(losses) / len(losses)"
    notes = changed(("losses = []", before, "return sum(losses) / len(losses)"), ("losses = []", after, end))
    assert [note.risk for note in notes] == ["exact"]


def test_list_that_grows_through_all_epochs_has_an_effect_on_memory() -> None:
    """Read behind all epochs, it keeps a number for every step of them on the device."""
    loop = f"    for x, y in loader:\n{indent(STEP, '        ')}        losses.append(loss.item())\n"
    text = f"losses = []\nfor epoch in range(3):\n{loop}print(losses)\n"
    new = text.replace("loss.item()", "loss.detach()").replace(
        "print(losses)", "losses = torch.stack(losses).tolist() if losses else []\nprint(losses)"
    )
    (note,) = check_transformed(RULE, HEAD + text, HEAD + new)
    assert note.effects == ("memory",)


def test_list_that_is_shown_and_begun_anew() -> None:
    """A list that the loop prints every so many steps, and then empties, is read where it is printed."""
    shown = "if i % 10 == 0:\n    print(sum(losses) / len(losses))\n    losses = []"
    drawn = shown.replace("    print", "    losses = torch.stack(losses).tolist() if losses else []\n    print")
    changed(
        ("losses = []", f"losses.append(loss.item())\n{shown}", ""),
        ("losses = []", f"losses.append(loss.detach())\n{drawn}", ""),
        header=COUNTED,
    )
    kept = training("losses = []", f"losses.append(loss.item())\n{shown.replace('losses = []', 'pass')}", "", header=COUNTED)
    check_held(RULE, kept, "used-each-step")


def test_display_is_drawn_on_each_step_where_nothing_is_gained() -> None:
    """While something else waits for the device on each step, a display can as well be drawn."""
    step = "total += loss.item()\nbar.set_postfix(a=total)\nwriter.add_scalar('loss', loss.item())"
    check_held(RULE, training("total = 0.0\nbar = tqdm()", step, "return total", header=COUNTED), "still-waiting")


@pytest.mark.parametrize(
    "also",
    [
        pytest.param("writer.add_scalar('loss', loss.item())", id="logged"),
        pytest.param("print(f'{loss.item():.3f}')", id="printed"),
        pytest.param("print(loss)", id="printed as a tensor"),
        pytest.param("print(float(loss))", id="printed as a Python number"),
        pytest.param("print(f'{loss.detach():.3f}')", id="printed detached"),
        pytest.param("print(loss.detach().cpu().numpy())", id="printed as an array"),
        pytest.param("with record():\n    writer.add_scalar('loss', loss.item())", id="in a with statement"),
        pytest.param("history['loss'].append(loss.item())", id="kept out of reach"),
        pytest.param("other.append(loss.item())\nprint(other)", id="in a list that is printed"),
    ],
)
@pytest.mark.parametrize("adds", ["total += loss.item()", "total += loss.item() * x.size(0)", "total += float(loss)"])
def test_sum_of_what_is_read_on_each_step_anyway_is_held(also: str, adds: str) -> None:
    """Added up on the device, its number would make the host wait all the same."""
    before, behind = f"{also}\n{adds}", f"{adds}\n{also}"
    for step in (before, behind):
        check_held(RULE, training("total, other = 0.0, []", step, "return total"), "read-anyway")


@pytest.mark.parametrize(
    "also",
    [
        pytest.param("if i % 9 == 0:\n    print(loss.item())", id="now and then"),
        pytest.param("if verbose:\n    print(loss.item())", id="where the user asks for it"),
        pytest.param("if loss.isnan():\n    continue\nprint(loss.item())", id="not on steps that end early"),
        pytest.param("loss = loss / 2\nprint(loss.item())", id="another loss"),
        pytest.param("print(outputs.sum().item())", id="something else"),
        pytest.param("unused = loss.item()", id="for nothing"),
        pytest.param("value = loss.item()\nif i % 9 == 0:\n    print(value)", id="too early"),
    ],
)
def test_sum_of_what_is_read_elsewhere_is_added_up(also: str) -> None:
    """A reading that need not be made on each step, or is of something else, is no reason to read on each step."""
    text = training("total = 0.0", f"total += loss.item()\n{also}", "return total", header=COUNTED)
    assert "total = total + loss.detach().double()" in run_transform(RULE, text).after.decode()


def test_sum_beside_another_that_is_read_anyway() -> None:
    """What one sum cannot gain another one can."""
    step = "total += loss.item()\nhits += (outputs > 0).sum().item()\nprint(loss.item())"
    text = training("total, hits = 0.0, 0", step, "return total, hits")
    (held, fixed) = run_transform(RULE, text).notes
    assert (held.outcome, fixed.outcome) == ("held", "fixed")


def test_what_a_display_computes_may_be_used_behind_the_loop() -> None:
    """The last step is drawn, so that what was computed for it is right behind the loop."""
    shown = "mean = total / (i + 1)\nbar.set_postfix(a=mean)"
    drawn = f"if i % 10 == 0 or i + 1 == len(loader):\n    total = float(total)\n{indent(shown, '    ')}"
    begin, new = "total, bar = 0.0, tqdm()", "total = total + loss.detach().double()"
    changed((begin, f"total += loss.item()\n{shown}", "return mean"), (begin, f"{new}\n{drawn}", "return mean"), header=COUNTED)


def test_trap_2_loss_that_is_written_later_is_copied() -> None:
    """A detached loss shares its memory, so that ``loss /= 2`` would change what was collected."""
    changed(
        ("losses = []", "losses.append(loss.item())\nloss /= 2", "print(losses)"),
        (
            "losses = []",
            "losses.append(loss.detach().clone())\nloss /= 2",
            "losses = torch.stack(losses).tolist() if losses else []\nprint(losses)",
        ),
    )


@pytest.mark.parametrize(
    ("made", "tensor"),
    [
        pytest.param("", "outputs[0, 0]", id="view"),
        pytest.param("part = outputs[0, 0]", "part", id="view with a name"),
        pytest.param("other = loss\nother.mul_(2)", "loss", id="written by another name"),
        pytest.param("torch.distributed.all_reduce(loss)", "loss", id="given to code that writes"),
        pytest.param("state += loss.detach()\npart = state[0]", "part", id="view of what each step writes"),
    ],
)
def test_tensor_whose_memory_may_be_written_later_is_copied(made: str, tensor: str) -> None:
    """What is collected must keep its value until the loop is through."""
    step = f"{made}\nlosses.append({tensor}.item())"
    text = training("losses, state = [], torch.zeros(1, device=device)", step, "print(losses)")
    assert f"losses.append({tensor}.detach().clone())" in run_transform(RULE, text).after.decode()


@pytest.mark.parametrize("device", ['"mps" if torch.backends.mps.is_available() else "cuda"', "torch.accelerator.current_accelerator()"])
def test_device_without_float64_collects_what_it_adds(device: str) -> None:
    """The host adds the same numbers in the same order, behind the loop."""
    head = HEAD.replace('torch.device("cuda" if torch.cuda.is_available() else "cpu")', device)
    (note,) = changed(
        ("total = 0.0", "total += loss.item()", "return total"),
        (
            "total = 0.0\ntotal_values = []",
            "total_values.append(loss.detach())",
            "for value in torch.stack(total_values).tolist() if total_values else []:\n    total += value\nreturn total",
        ),
        head=head,
    )
    assert note.risk == "exact"


# Displays ----------------------------------------------------------------------------------------------------------


def test_progress_bar_is_drawn_on_some_steps() -> None:
    """All sums that a bar shows become numbers where it is drawn, which the last step is sure to be."""
    shown = "bar.set_postfix(loss=total / (i + 1), hits=hits)"
    adds = "total += loss.item()\nhits += (outputs > 0).sum().item()"
    new = "total = total + loss.detach().double()\nhits = hits + (outputs > 0).sum()"
    drawn = f"if i % 10 == 0 or i + 1 == len(loader):\n    total = float(total)\n    hits = int(hits)\n    {shown}"
    notes = changed(
        ("total, hits = 0.0, 0\nbar = tqdm(total=16)", f"{adds}\n{shown}\nbar.update(1)", "return total"),
        ("total, hits = 0.0, 0\nbar = tqdm(total=16)", f"{new}\n{drawn}\nbar.update(1)", "total = float(total)\nreturn total"),
        header=COUNTED,
    )
    assert [note.effects for note in notes] == [("sync",), ("sync",)]
    assert "is drawn on every tenth step and on the last one" in notes[0].notes[0]


@pytest.mark.parametrize(
    ("header", "new", "test"),
    [
        pytest.param(
            "for x, y in loader:", "for step, (x, y) in enumerate(loader):", "step % 10 == 0 or step + 1 == len(loader)", id="none"
        ),
        pytest.param("for i, (x, y) in enumerate(loader, 1):", None, "i % 10 == 1 or i == len(loader)", id="from 1"),
        pytest.param("for i, (x, y) in enumerate(tqdm(loader)):", None, "i % 10 == 0 or i + 1 == len(loader)", id="bar within"),
        pytest.param("for i, (x, y) in tqdm(enumerate(loader), total=16):", None, "i % 10 == 0 or i + 1 == len(loader)", id="bar around"),
    ],
)
def test_counters_of_steps(header: str, new: str | None, test: str) -> None:
    """The loop's own counter is used, or one is added."""
    begin = "total = 0.0\nbar = tqdm()"
    changed(
        (begin, "total += loss.item()\nbar.set_description(f'{total:.3f}')", ""),
        (
            begin,
            f"total = total + loss.detach().double()\nif {test}:\n    total = float(total)\n    bar.set_description(f'{{total:.3f}}')",
            "",
        ),
        header=header,
        new_header=new or header,
    )


@pytest.mark.parametrize(
    ("step", "code"),
    [
        pytest.param("bar.set_postfix(loss=total)\nif x.size(0) < 4:\n    break", "last-step-unknown", id="left early"),
        pytest.param("bar.set_postfix(loss=record(total))", "used-each-step", id="does more"),
        pytest.param("other.set_postfix(loss=total)", "used-each-step", id="no known bar"),
        pytest.param("print(total, end='\\n')", "used-each-step", id="lines"),
    ],
)
def test_displays_that_cannot_be_drawn_less_often(step: str, code: str) -> None:
    """What is shown last must be right, and nothing else may be left out."""
    text = training("total = 0.0\nbar = tqdm()", f"total += loss.item()\n{step}", "return total", header=COUNTED)
    check_held(RULE, text, code)


def test_line_that_is_written_over() -> None:
    """A line that ends with a carriage return is drawn over by the next one."""
    shown = 'text = f"{total:.3f}"\nprint(text, end="\\r")'
    drawn = f"if i % 10 == 0 or i + 1 == len(loader):\n    total = float(total)\n{indent(shown, '    ')}"
    changed(
        ("total = 0.0", f"total += loss.item()\n{shown}", ""),
        ("total = 0.0", f"total = total + loss.detach().double()\n{drawn}", ""),
        header=COUNTED,
    )


BAR = """\
import sys, time

begin = time.time()

def progress_bar(current, total, text):
    global begin
    if current == 0:
        begin = time.time()
    sys.stdout.write(" %d/%d %s %d" % (current + 1, total, text, time.time() - begin))
    sys.stdout.write("\\r" if current < total - 1 else "\\n")
    sys.stdout.flush()
"""


def test_progress_bar_of_the_project() -> None:
    """A function that draws over its own line is a display, whatever its name; one that also stores is none."""
    text = training("total = 0.0", "total += loss.item()\nprogress_bar(i, len(loader), '%.3f' % total)", "", header=COUNTED)
    text = text.replace("from tqdm import tqdm", "from bars import progress_bar")
    result = run_transform(RULE, text, modules={"bars.py": BAR})
    assert "if i % 10 == 0 or i + 1 == len(loader):" in result.after.decode()
    storing = BAR.replace("    sys.stdout.flush()", "    seen.append(text)")
    check_held(RULE, text, "used-each-step", modules={"bars.py": storing})


# The programs run --------------------------------------------------------------------------------------------------

SCRIPT = dedent("""\
    import sys
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = TensorDataset(torch.randn(96, 3), torch.randint(0, 5, (96,)))
    loader = DataLoader(data, batch_size=4)
    model = nn.Linear(3, 5).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


    def train():
        total, hits, shown, losses = 0.0, 0, 0.0, []
        for i, (x, y) in enumerate(loader):
            x, y = x.to(device), y.to(device)
            outputs = model(x)
            loss = criterion(outputs, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * x.size(0)
            hits += (outputs.argmax(1) == y).sum().item()
            shown += float(loss)
            losses.append(loss.item())
            if i % 8 == 7:
                print(i, repr(shown / 8))
                shown = 0.0
        return total / len(data), 100 * hits / len(data), losses


    @torch.no_grad()
    def test():
        model.eval()
        total = correct = 0
        for i, (x, y) in enumerate(loader):
            x, y = x.to(device), y.to(device)
            outputs = model(x)
            total += criterion(outputs, y).item()
            correct += outputs.argmax(1).eq(y).cpu().sum().item()
            sys.stderr.write("\\r%.3f %d" % (total / (i + 1), correct))
        return total, correct


    for epoch in range(2):
        print(train(), test())
    """)


def test_rewritten_program_prints_the_same_and_waits_less(tmp_path: Path) -> None:
    """Every printed digit is the same, on the host and on the device, which is waited for a few times an epoch only."""
    result = run_transform(RULE, SCRIPT)
    assert {note.outcome for note in result.notes} == {"fixed"}
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(SCRIPT)
    after.write_bytes(result.after)
    old, waiting = run_on_fake_gpu(before)
    new, fewer = run_on_fake_gpu(after)
    assert new == old
    assert run_on_cpu(after) == run_on_cpu(before)
    steps, epochs = 24, 2
    assert waiting["sync"] >= 5 * steps * epochs
    assert fewer["sync"] <= 13 * epochs  # sums that are shown now and then, and what is read behind the loops


def ran(script: str, folder: Path) -> tuple[str, str, int, int]:
    """What a script prints on the pretend device before and after the rewrite, and how often the device is waited for."""
    result = run_transform(RULE, script)
    assert result.outcome is Outcome.CHANGED
    before, after = folder / "before.py", folder / "after.py"
    before.write_text(script)
    after.write_bytes(result.after)
    (old, waiting), (new, fewer) = run_on_fake_gpu(before), run_on_fake_gpu(after)
    return old, new, waiting["sync"], fewer["sync"]


def test_display_shows_the_same_in_the_end(tmp_path: Path) -> None:
    """A display that is drawn on some steps only shows, when it is drawn, what it showed before, and so it does in the end."""
    script = SCRIPT.replace("sys.stderr", "sys.stdout").replace(
        "    return total, correct", '    print("\\ndone")\n    return total, correct'
    )
    old, new, waiting, fewer = ran(script, tmp_path)
    drawn, before = ([text.splitlines() for text in printed.split("\n\ndone")] for printed in (new, old))
    assert [part[-1] for part in drawn] == [part[-1] for part in before]
    assert all(set(some) < set(every) for some, every in zip(drawn[:2], before[:2]))
    assert fewer < waiting


def test_sums_that_are_collected_are_the_same(tmp_path: Path) -> None:
    """Where the device may not know float64, the host adds the same numbers in the same order."""
    head, _, rest = SCRIPT.partition("def train():")
    head = head.replace('"cuda" if', '"mps" if torch.backends.mps.is_available() else "cuda" if')
    step = rest[rest.index("        x, y") : rest.index("        total +=")]
    body = f"    total, losses = 0.0, []\n    for x, y in loader:\n{step}        total += loss.item()\n        losses.append(loss.item())\n"
    script = f"{head}def train():\n{body}    return total / len(data), losses\n\n\nfor epoch in range(2):\n    print(train())\n"
    old, new, waiting, fewer = ran(script, tmp_path)
    assert new == old
    assert run_on_cpu(tmp_path / "after.py") == run_on_cpu(tmp_path / "before.py")
    assert fewer < waiting / 4


def test_half_losses_are_added_exactly(tmp_path: Path) -> None:
    """Trap 7: losses in half precision are summed with the digits that Python has."""
    script = SCRIPT.replace("loss = criterion(outputs, y)", "loss = criterion(outputs, y).half().float().bfloat16()")
    result = run_transform(RULE, script)
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(script)
    after.write_bytes(result.after)
    assert run_on_cpu(after) == run_on_cpu(before)
