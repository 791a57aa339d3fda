"""What runs for every batch: loops over batches, and what they call."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts.project.repetition import Repeated

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader
loader = DataLoader(data)
net = nn.Linear(2, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
"""
TRAIN = """
for epoch in range(3):
    for x in loader:
        net(x).sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("mark()", Repeated.SELDOM, id="module"),
        pytest.param("for i in range(3):\n    mark()", Repeated.SELDOM, id="other loop"),
        pytest.param(f"{TRAIN}    mark()", Repeated.SELDOM, id="each epoch"),
        pytest.param(f"{TRAIN}        mark()", Repeated.BATCH, id="training"),
        pytest.param("for x in loader:\n    mark()", Repeated.BATCH, id="loader"),
        pytest.param("for x in loader:\n    f = lambda: mark()", Repeated.SELDOM, id="lambda"),
        pytest.param("for x in loader:\n    pass\nelse:\n    mark()", Repeated.SELDOM, id="else of a loop"),
        pytest.param("net.eval()\nfor x, y in other:\n    net(x.cuda())\n    mark()", Repeated.BATCH, id="module-level evaluation"),
        pytest.param(
            "def check(other):\n    net.eval()\n    for x, y in other:\n        net(x.cuda())\n        mark()",
            Repeated.BATCH,
            id="evaluation",
        ),
        pytest.param(
            "def check(other):\n    net.eval()\n    for name in other:\n        print(name)\n        mark()",
            Repeated.SELDOM,
            id="no batches",
        ),
        pytest.param(f"def f():\n    mark()\n{TRAIN}        f()", Repeated.BATCH, id="function"),
        pytest.param(f"def f():\n    mark()\ndef g():\n    f()\n{TRAIN}        g()", Repeated.BATCH, id="through two functions"),
        pytest.param(f"def f():\n    mark()\n{TRAIN}        f()\n    f()", Repeated.BOTH, id="function called elsewhere too"),
        pytest.param(f"def f():\n    f()\n    mark()\n{TRAIN}    f()", Repeated.SELDOM, id="function that calls itself"),
        pytest.param(
            f"class A:\n    def f(self):\n        mark()\na = A()\n{TRAIN}        a.f()", Repeated.BATCH, id="method of an object"
        ),
        pytest.param(
            f"class A:\n    def f(self):\n        mark()\na = A()\n{TRAIN}        a.f()\nunknown.f()", Repeated.BOTH, id="method, perhaps"
        ),
        pytest.param(
            f"class A:\n    def step(self):\n        mark()\na = A()\n{TRAIN}        a.step()", Repeated.BATCH, id="method beside torch's"
        ),
        pytest.param(
            "import lightning as L\nclass A(L.LightningModule):\n    def training_step(self, x):\n        mark()", Repeated.BATCH, id="hook"
        ),
        pytest.param(
            "import lightning as L\nclass A(L.LightningModule):\n    def on_train_epoch_end(self):\n        mark()",
            Repeated.SELDOM,
            id="hook for epochs",
        ),
        pytest.param("class A:\n    def training_step(self, x):\n        mark()", Repeated.SELDOM, id="a hook's name alone"),
        pytest.param(
            f"class A(nn.Module):\n    def forward(self, x):\n        mark()\nnet = A()\n{TRAIN}",
            Repeated.BATCH,
            id="forward of what trains",
        ),
        pytest.param("class A(nn.Module):\n    def forward(self, x):\n        mark()\nA()(x)", Repeated.SELDOM, id="forward, once"),
    ],
)
def test_how_often_a_place_runs(text: str, expected: Repeated) -> None:
    """A place runs for every batch where a loop over batches holds it or its calls, whatever it is guarded by."""
    facts = facts_of(f"{HEAD}{text}\n")
    assert facts.repetition.of(node(facts, "mark()")) is expected
