"""What a program's change takes as a whole: where the scaler is made, how, and under which condition."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.apex.migration import Migration, migration_of
from torchfix.facts.obstacle import Obstacle

TRAIN = """\
import torch
from apex import amp

def main(args, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{initialize}
    for x in load():
        loss = model(x)
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
CALL = "model, optimizer = amp.initialize(model, optimizer{})"


def migration(initialize: str) -> Migration | Obstacle | None:
    """What is read of a script in which Apex is initialized by these lines."""
    return migration_of(facts_of(TRAIN.format(initialize="\n".join(f"    {line}" for line in initialize.splitlines()))))


@pytest.mark.parametrize(
    ("initialize", "scaler", "goes"),
    [
        (CALL.format(""), 'torch.amp.GradScaler("cuda")', True),
        (CALL.format(", enabled=args.on"), 'torch.amp.GradScaler("cuda", enabled=bool(args.on))', True),
        (f"if args.on:\n    {CALL.format('')}", 'torch.amp.GradScaler("cuda", enabled=bool(args.on))', True),
        (
            f"if args.on or on:\n    {CALL.format(', enabled=x > 1')}",
            'torch.amp.GradScaler("cuda", enabled=bool((args.on or on) and x > 1))',
            True,
        ),
        (f"if a == 1:\n    if b == 2:\n        {CALL.format('')}", 'torch.amp.GradScaler("cuda", enabled=a == 1 and b == 2)', True),
        (f"if a == 1:\n    print(a)\n    {CALL.format('')}", 'torch.amp.GradScaler("cuda", enabled=a == 1)', False),
        (f"if a == 1:\n    {CALL.format('')}\nelse:\n    print(a)", 'torch.amp.GradScaler("cuda", enabled=a == 1)', False),
        (CALL.format(", loss_scale=128"), 'torch.amp.GradScaler("cuda", init_scale=128.0, growth_interval=10**9)', True),
    ],
)
def test_the_scaler_that_is_made(initialize: str, scaler: str, goes: bool) -> None:
    """Under all conditions that led to Apex, in its place."""
    found = migration(initialize)
    assert isinstance(found, Migration)
    assert (found.scaler, found.goes, found.owner, found.passes) == (scaler, goes, "", ())


@pytest.mark.parametrize(
    ("initialize", "code"),
    [
        ("pass", "apex-initialized"),
        (f"else_ = 1\nif a:\n    pass\nelse:\n    {CALL.format('')}", "optimizer-elsewhere"),
        (f"def start(model, optimizer):\n    {CALL.format('')}", "optimizer-elsewhere"),
    ],
)
def test_places_at_which_no_scaler_can_be_made(initialize: str, code: str) -> None:
    """It must stand beside the optimizer, under conditions at most."""
    found = migration(initialize)
    assert isinstance(found, Obstacle) and found.code == code


def test_a_file_without_apex_is_none() -> None:
    """There is nothing to change."""
    assert migration_of(facts_of("import torch")) is None
