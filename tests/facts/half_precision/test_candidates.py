"""Which loops are candidates for mixed precision at all; what each of them proves is tested with the parts and the rule."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.half_precision.candidates import Candidate
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.loops import TrainingStep

LOOP = """\
import torch
from torch import nn

model = nn.Linear(2, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in batches:
    loss = model(x.cuda()).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_plain_loop_is_a_candidate_with_all_of_its_parts() -> None:
    """Every part is known."""
    facts = facts_of(LOOP)
    ((node, found),) = facts.candidates.all
    assert isinstance(found, Candidate)
    assert found.loop.node is node
    assert found.companions[0].after.lineno == 5


def test_loops_on_the_host_and_scaled_loops_are_none() -> None:
    """They have nothing to gain."""
    assert list(facts_of(LOOP.replace(".cuda()", "")).candidates.all) == []
    assert list(facts_of(LOOP.replace("loss.backward", "scaler.scale(loss).backward")).candidates.all) == []


def test_a_loop_that_trains_through_a_function_answers_for_it() -> None:
    """What was read is the function; the finding is the loop's, and that of the first loop only."""
    text = (
        LOOP.replace("for x in batches:\n", "\n\ndef learn(x):\n")
        + "\n\nfor x in batches:\n    learn(x)\nfor x in batches:\n    learn(x)\n"
    )
    ((node, found),) = facts_of(text).candidates.all
    assert isinstance(found, Candidate)
    assert isinstance(found.loop, TrainingStep)
    assert node.lineno == 15


LEARNER = """\
import torch
from torch import nn


class Learner:
    def __init__(self):
        self.model = nn.Linear(2, 2).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def learn(self, x):
        self.update(x)

    def update(self, x):
        self.optimizer.zero_grad()
        self.model(x.cuda()).sum().backward()
        self.optimizer.step()
"""


@pytest.mark.parametrize(
    ("method", "knows", "answers"),
    [
        pytest.param("update", True, True, id="a loop that calls it"),
        pytest.param("update", False, False, id="a loop in a file that nobody would read for its loops"),
        pytest.param("learn", True, False, id="a loop that calls it through another method"),
        pytest.param("learn", False, False, id="both"),
    ],
)
def test_a_method_answers_for_itself_where_no_loop_can(method: str, knows: bool, answers: bool) -> None:
    """Either the loop or the method does, never both and never none."""
    main = f"from train import Learner\n\nlearner = Learner()\nfor x in batches:\n    learner.{method}(x)\n"
    main += "print(learner.optimizer)\n" if knows else ""
    facts = facts_of(LEARNER, modules={"main.py": main})
    other = facts.project.file("main.py")
    assert other is not None
    found = [list(item.candidates.all) for item in (facts, other)]
    ((node, candidate),) = found[answers]
    assert isinstance(candidate, Candidate)
    assert isinstance(node, ast.For) is answers
    assert not found[not answers]


def test_a_loop_that_sends_backward_through_a_function_that_may_not_has_a_reason() -> None:
    """It is seen, and left."""
    text = LOOP.replace("loss.backward()", "send(loss)").replace(
        "for x in batches:\n", "\n\ndef send(loss):\n    if loss > 0:\n        loss.backward()\n\n\nfor x in batches:\n"
    )
    ((_, found),) = facts_of(text).candidates.all
    assert isinstance(found, Obstacle)
    assert found.code == "backward-elsewhere"


GIVEN = """\
import torch
from torch import nn

model = nn.Linear(2, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def optimize(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def given(calls: str, text: str = GIVEN, main: str | None = None) -> Candidate | Obstacle:
    """What is proved of the first loop behind a function that is given its loss."""
    modules = {"use.py": main} if main is not None else None
    return facts_of(f"{text}\n\n{calls}", modules=modules).candidates.all[0][1]


def test_those_who_hand_a_loss_to_a_function_that_steps_run_their_networks_under_autocast() -> None:
    """Each with a region of its own."""
    found = given(
        "def fit():\n    for x in batches:\n        loss = model(x.cuda()).sum()\n        optimize(loss)\n\n\n"
        "for x in batches:\n    out = model(x.cuda())\n    loss = out.mean()\n    optimize(loss)\nfit()\n"
    )
    assert isinstance(found, Candidate), found
    assert [(function.name if function else None, len(part.regions)) for function, part in found.forward.callers] == [("fit", 1), (None, 1)]


OWNED = """\
import torch
from torch import nn


class Base:
    def __init__(self):
        self.model = nn.Linear(2, 2).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def update(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


class Trainer(Base):
    def __init__(self):
        super().__init__()

    def fit(self):
        for x in batches:
            loss = self.model(x.cuda()).sum()
            self.update(loss)


Trainer().fit()
"""


@pytest.mark.parametrize("line", ["super().__init__()", "Base.__init__(self)", "self.model = nn.Linear(2, 2).cuda()"])
def test_methods_of_a_class_below_read_what_the_constructor_above_surely_makes(line: str) -> None:
    """One that does not surely run it would not."""
    ((_, found),) = facts_of(OWNED.replace("super().__init__()", line)).candidates.all
    assert isinstance(found, Candidate) is (line == "super().__init__()"), found


@pytest.mark.parametrize(
    ("calls", "text", "main", "code"),
    [
        pytest.param(
            "for x in batches:\n    optimize(model(x.cuda()).sum())\n", GIVEN, None, "backward-form", id="computed where it is handed over"
        ),
        pytest.param("for x in batches:\n    optimize(x.sum())\n", GIVEN, None, "forward-elsewhere", id="of no network"),
        pytest.param(
            "for x in batches:\n    loss = model(x.cuda()).sum()\n    optimize(loss)\n",
            GIVEN,
            "from train import model, optimize\n\nfor x in batches:\n    loss = model(x).sum()\n    optimize(loss)\n",
            "forward-elsewhere",
            id="also in another file",
        ),
        pytest.param(
            "def fit():\n    model = nn.Linear(2, 2).cuda()\n    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
            "    for x in batches:\n        loss = model(x.cuda()).sum()\n        send(loss, optimizer)\n\n\nfit()\n",
            GIVEN.replace("optimize(loss)", "optimize(loss, optimizer)")
            + "\n\ndef send(loss, optimizer):\n    optimize(loss, optimizer)\n",
            None,
            "forward-elsewhere",
            id="handed on",
        ),
    ],
)
def test_a_function_that_is_given_a_loss_says_why_its_callers_may_not(calls: str, text: str, main: str | None, code: str) -> None:
    """The network is in sight, but autocast could not be put around it, or what it needs not be read there."""
    found = given(calls, text, main)
    assert isinstance(found, Obstacle), found
    assert found.code == code


def test_a_new_name_is_free_in_every_file_through_which_the_optimizer_comes() -> None:
    """The loop's file and the caller's count, others do not; as an attribute it must be free too where it will be one."""
    loop = LOOP[LOOP.index("for x") :].replace("\n", "\n    ").rstrip() + "\n"
    text = f"scaler = 1\n\n\ndef fit(model, optimizer, batches):\n    {loop}"
    main = LOOP[: LOOP.index("for x")] + "from train import fit\n\ngrad_scaler = 1\nfit(model, optimizer, batches)\n"
    facts = facts_of(text, modules={"main.py": main, "other.py": "amp_scaler = 1\n"})
    ((_, found),) = facts.candidates.all
    assert isinstance(found, Candidate)
    assert [item.path for item in found.files] == ["train.py", "main.py"]
    assert found.fresh("scaler", "grad_scaler", "amp_scaler") == "amp_scaler"
    assert found.fresh("scaler", "grad_scaler") == "grad_scaler_2"
    attribute = LOOP.replace("optimizer", "self.optimizer").replace("\n", "\n        ")
    text = f"class T:\n    def run(self):\n        self.scaler = 1\n        {attribute}".rstrip() + "\n"
    ((_, owned),) = facts_of(text).candidates.all
    assert isinstance(owned, Candidate), owned
    assert owned.fresh("scaler", "grad_scaler") == "grad_scaler"
