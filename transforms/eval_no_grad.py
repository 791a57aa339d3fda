"""Evaluate without building the graph that only training needs.

Why:
    While gradients are on, a forward pass keeps every activation for a backward pass. Where none comes, that memory is
    kept for nothing: an evaluation could take batches several times as large, and each operation pays for its node.

Before:
    import torch
    from torch import nn

    def accuracy(model, batches):
        model.eval()
        right = 0
        for inputs, targets in batches:
            right += (model(inputs).argmax(1) == targets).sum().item()
        return right

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    print(accuracy(model, [(torch.ones(4, 3), torch.zeros(4))]))

After:
    import torch
    from torch import nn

    @torch.no_grad()
    def accuracy(model, batches):
        model.eval()
        right = 0
        for inputs, targets in batches:
            right += (model(inputs).argmax(1) == targets).sum().item()
        return right

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    print(accuracy(model, [(torch.ones(4, 3), torch.zeros(4))]))

Safety:
    Exact where everything computed inside is followed to its readers, in all files, and nothing of it is sent backward
    or asked for its graph. ``nn.TransformerEncoder`` and ``nn.MultiheadAttention`` in evaluation, and ``nn.LSTM`` on the
    CPU, take another kernel without gradients, so outputs may differ in the last digits: where a network has them, or is
    made out of sight, the change is numeric, and with a padding mask it is held, since padded positions become zeros.
    Held too where code out of sight may train, where gradients are used inside, and where what a network or a hook keeps
    may be sent backward later. ``no_grad``, never ``inference_mode``, whose tensors training could not use.

Reference:
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#disable-gradient-calculation-for-validation-or-inference
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchfix.edits import AddDecorator, AddImport, Edit, Wrap
from torchfix.facts import Facts
from torchfix.facts.training.evaluations import Evaluation
from torchfix.transform import Effect, Finding, Held, NoOptions, Transform

_MESSAGE = "an evaluation builds a graph that nobody uses"
_MESSAGE_BOTH = "evaluation builds a graph that only training uses"
_BECAUSE = "what it computes was followed to all its readers, and nothing of it is sent backward"


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    for evaluation in facts.evaluations.all:
        message = _MESSAGE if evaluation.condition is None else _MESSAGE_BOTH
        obstacle = evaluation.obstacle
        if obstacle is not None:
            yield Finding(evaluation.place, message, held=Held(obstacle.code, obstacle.text, obstacle.help))
            continue
        yield Finding(
            evaluation.place,
            message,
            tuple(_edits(facts, evaluation)),
            effects=frozenset({Effect.NUMERICS} if evaluation.fast_path else ()),
            because=_BECAUSE if evaluation.condition is None else f"only where {ast.unparse(evaluation.condition)} is it sent backward",
            notes=(f"{evaluation.fast_path}.",) if evaluation.fast_path else (),
        )


def _edits(facts: Facts, evaluation: Evaluation) -> Iterator[Edit]:
    """A decorator where a whole function evaluates, else a block around the statements."""
    first, last = evaluation.statements[0], evaluation.statements[-1]
    name = "torch.no_grad" if evaluation.condition is None else "torch.set_grad_enabled"
    spelled = facts.names.spell(name, evaluation.function or first)
    if spelled is None:
        yield AddImport("torch")
    given = "" if evaluation.condition is None else ast.unparse(evaluation.condition)
    if evaluation.function is not None:
        yield AddDecorator(evaluation.function, f"{spelled or name}()")
    else:
        yield Wrap(first, last, f"with {spelled or name}({given}):")


TRANSFORM = Transform.from_module(__name__, __doc__, group="memory", literals=(b"torch",), find=find, since="0.4")
