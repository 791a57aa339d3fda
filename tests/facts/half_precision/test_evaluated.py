"""Which evaluation loops run, in full precision, a network that trains under autocast; what becomes of them is tested with the rule."""

from __future__ import annotations

from tests.facts.reading import facts_of
from torchfix.facts.half_precision.evaluated import Evaluated, evaluated

TRAINING = """\
import torch
from torch import nn

model = nn.Linear(2, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x in batches:
    with torch.autocast("cuda"):
        loss = model(x.cuda()).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
EVALUATION = """\
model.eval()
with torch.no_grad():
    for x in batches:
        first = model(x.cuda()).argmax(1)
        second = model(x.cuda()).argmax(1)
        print(first, second)
"""


def test_an_evaluation_without_such_a_training_is_none() -> None:
    """There is no precision to take over."""
    assert list(evaluated(facts_of(EVALUATION))) == []
    assert list(evaluated(facts_of(TRAINING.replace('with torch.autocast("cuda")', "with other()") + EVALUATION))) == []


def test_a_loop_in_training_mode_is_none() -> None:
    """What it is for cannot be told."""
    assert list(evaluated(facts_of(TRAINING + EVALUATION.replace("eval()", "train()").replace("torch.no_grad", "other")))) == []


def test_the_statements_that_run_the_network_are_one_stretch() -> None:
    """Statements that stand behind each other share a region, and what only picks needs no float32."""
    facts = facts_of(TRAINING + EVALUATION)
    ((place, home, loop, found),) = evaluated(facts)
    assert isinstance(found, Evaluated)
    assert (place, home) == (loop, facts)
    assert [(first.lineno, last.lineno) for first, last in found.regions] == [(17, 18)]
    assert found.restored == ()


def test_an_evaluation_of_another_file_is_told_where_its_network_trains() -> None:
    """The place is the training loop's, the loop the other file's."""
    module = "import torch\n\n\ndef evaluate(model, batches):\n" + "".join(f"    {line}\n" for line in EVALUATION.splitlines())
    facts = facts_of("from evaluation import evaluate\n" + TRAINING + "evaluate(model, batches)\n", modules={"evaluation.py": module})
    ((place, home, loop, _),) = evaluated(facts)
    assert place is facts.loops.training[0].node
    assert home.path == "evaluation.py"
    assert loop.lineno == 7
