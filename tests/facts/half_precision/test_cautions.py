"""What a user is told before a loop computes in mixed precision."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.half_precision.candidates import Candidate
from torchfix.facts.half_precision.cautions import cautions

TEXT = """\
import torch
from torch import nn


class Warmup:
    def __init__(self, optimizer):
        self.inner = optimizer

    def advance(self):
        self.inner.param_groups[0]["lr"] *= 1.1
        self.inner.step()


model = nn.Linear(2, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
for x in batches:
    loss = model(x.cuda()).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
SWITCH = "Set use_amp to False"


def told(text: str, scaled: bool = True, saved: bool = False) -> list[str]:
    """The sentences on the first loop of a script."""
    ((_, found), *_) = facts_of(text).candidates.all
    assert isinstance(found, Candidate), found
    return list(cautions(found, "use_amp", scaled, saved))


def test_a_plain_loop_only_says_how_to_switch_it_off() -> None:
    """And to compare."""
    (sentence,) = told(TEXT)
    assert sentence.startswith(SWITCH)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(TEXT + "    schedule.step()\n", "learning-rate schedule also moves", id="a schedule"),
        pytest.param(TEXT + 'torch.save({"o": optimizer.state_dict()}, "last.pt")\n', "scaler's state is not saved", id="a checkpoint"),
        pytest.param(
            TEXT.replace("schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)", "wrapped = Warmup(optimizer)")
            .replace("    optimizer.zero_grad", "    wrapped.inner.zero_grad")
            .replace("    optimizer.step()", "    wrapped.advance()"),
            "advance (line 9 of train.py) also moves the learning rate",
            id="a schedule that steps by itself",
        ),
    ],
)
def test_what_only_concerns_a_scaler_is_told_only_where_there_is_one(text: str, words: str) -> None:
    """Bfloat16 skips no step and keeps no state."""
    plain, sentence = told(text)
    assert plain.startswith(SWITCH)
    assert words in sentence
    assert told(text, scaled=False) == [plain]


def test_a_state_that_is_saved_is_no_matter() -> None:
    """The rule saves it where it can."""
    assert len(told(TEXT + 'torch.save({"o": optimizer.state_dict()}, "last.pt")\n', saved=True)) == 1


def test_dataparallel_is_told_of() -> None:
    """Its threads compute in float16."""
    assert any(
        "DataParallel" in sentence for sentence in told(TEXT.replace("nn.Linear(2, 2).cuda()", "nn.DataParallel(nn.Linear(2, 2).cuda())"))
    )


def _within(head: str) -> str:
    """The script's training below a line of its own."""
    start = TEXT.index("model = ")
    return TEXT[:start] + head + "\n" + "".join(f"    {line}\n" for line in TEXT[start:].splitlines())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(_within("def fit():") + "\n\nfit()\n", [], id="in a function that runs once"),
        pytest.param(_within("for fold in range(5):"), ["made anew with the optimizer on line 16"], id="in a loop"),
        pytest.param(
            _within("def fit():") + "\n\nfor epoch in range(5):\n    fit()\n", ["made anew"], id="in a function that a loop calls"
        ),
    ],
)
def test_a_scaler_that_is_made_several_times_is_told(text: str, words: list[str]) -> None:
    """Its scale starts over with each."""
    rest = [item for item in told(text) if not item.startswith(SWITCH)]
    assert len(rest) == len(words)
    assert all(word in item for word, item in zip(words, rest))
