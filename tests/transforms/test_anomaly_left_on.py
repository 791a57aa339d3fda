"""anomaly-left-on: where anomaly detection is named as left on, and where it is somebody's choice."""

from __future__ import annotations

import pytest

from torchfix import registry
from torchfix.testing import check_held, check_noop
from torchfix.transform import Default

RULE = "anomaly-left-on"
HEAD = """\
import os
import argparse
import torch
from torch import autograd, nn

parser = argparse.ArgumentParser()
parser.add_argument("--debug", action="store_true")
parser.add_argument("--fast", action="store_false")
parser.add_argument("--detect", default=False)
parser.add_argument("--always", default=True)
parser.add_argument("--mode")
args = parser.parse_args()
ON = True
OFF = False
"""


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("torch.autograd.set_detect_anomaly(False)", id="turned off"),
        pytest.param("torch.autograd.set_detect_anomaly(OFF)", id="constant that is off"),
        pytest.param("if OFF:\n    torch.autograd.set_detect_anomaly(True)", id="behind a constant that is off"),
        pytest.param("torch.autograd.set_detect_anomaly(args.debug)", id="option that is off"),
        pytest.param("torch.autograd.set_detect_anomaly(mode=args.detect)", id="option with a default that is off"),
        pytest.param("if args.debug:\n    torch.autograd.set_detect_anomaly(True)", id="behind an option that is off"),
        pytest.param("if not args.fast:\n    torch.autograd.set_detect_anomaly(True)", id="unless an option that is on"),
        pytest.param("if args.mode == 'debug':\n    torch.autograd.set_detect_anomaly(True)", id="behind a word that nobody gives"),
        pytest.param("if os.environ.get('DEBUG'):\n    torch.autograd.set_detect_anomaly(True)", id="behind an unset variable"),
        pytest.param("if os.environ.get('DEBUG', '0') == '1':\n    torch.autograd.set_detect_anomaly(True)", id="behind a variable"),
        pytest.param("if config['debug']:\n    torch.autograd.set_detect_anomaly(True)", id="behind a configuration"),
        pytest.param("torch.autograd.set_detect_anomaly(config.debug)", id="from a configuration"),
        pytest.param("if ON and args.debug:\n    torch.autograd.set_detect_anomaly(True)", id="one of two conditions is off"),
        pytest.param("args.debug and torch.autograd.set_detect_anomaly(True)", id="behind and"),
        pytest.param("with autograd.detect_anomaly() if args.debug else context():\n    pass", id="context by choice"),
        pytest.param("if torch.isnan(loss):\n    torch.autograd.set_detect_anomaly(True)", id="after a NaN"),
        pytest.param("try:\n    train()\nexcept ValueError:\n    torch.autograd.set_detect_anomaly(True)", id="after an error"),
        pytest.param("def debug():\n    torch.autograd.set_detect_anomaly(True)", id="in a function that nothing calls"),
        pytest.param("def debug():\n    torch.autograd.set_detect_anomaly(True)\nif args.debug:\n    debug()", id="called by choice"),
        pytest.param(
            pytest.param(
                "def f(on):\n    if not on:\n        return\n    torch.autograd.set_detect_anomaly(True)\nf(args.debug)", id="left before"
            ),
        ),
        pytest.param("def train(debug=False):\n    torch.autograd.set_detect_anomaly(debug)\ntrain()", id="parameter that is off"),
        pytest.param("@HOOKS.register\nclass Hook:\n    def start(self):\n        torch.autograd.set_detect_anomaly(True)", id="plugin"),
        pytest.param("import pytorch_lightning as pl\npl.Trainer(detect_anomaly=args.debug)", id="trainer by choice"),
        pytest.param("import pytorch_lightning as pl\npl.Trainer(max_epochs=3)", id="trainer without it"),
        pytest.param("Trainer(detect_anomaly=True)", id="somebody else's trainer"),
        pytest.param("def f(torch):\n    torch.autograd.set_detect_anomaly(True)\nf(other)", id="another torch"),
        pytest.param("'torch.autograd.set_detect_anomaly(True)'", id="in a string"),
    ],
)
def test_left_alone(text: str) -> None:
    """Detection that is off unless somebody asks for it is no finding."""
    check_noop(RULE, f"{HEAD}{text}\n")


def test_a_test_may_use_it() -> None:
    """A function that pytest collects looks for NaN on purpose."""
    text = "import torch\n\ndef test_gradients():\n    with torch.autograd.detect_anomaly():\n        run()\n"
    check_noop(RULE, text, path="tests/test_model.py")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param("torch.autograd.set_detect_anomaly(True)", 15, id="switch"),
        pytest.param("autograd.set_detect_anomaly(mode=True)", 15, id="by keyword"),
        pytest.param("torch.autograd.set_detect_anomaly(True, check_nan=False)", 15, id="without the search for NaN"),
        pytest.param("torch.autograd.anomaly_mode.set_detect_anomaly(True)", 15, id="from its home"),
        pytest.param("torch.autograd.set_detect_anomaly(ON)", 15, id="constant"),
        pytest.param("if ON:\n    torch.autograd.set_detect_anomaly(True)", 16, id="behind a constant"),
        pytest.param("if OFF:\n    pass\nelse:\n    torch.autograd.set_detect_anomaly(True)", 18, id="behind else"),
        pytest.param("torch.autograd.set_detect_anomaly(args.always)", 15, id="option that is on"),
        pytest.param("if args.fast:\n    torch.autograd.set_detect_anomaly(True)", 16, id="behind an option that is on"),
        pytest.param("torch.autograd.set_detect_anomaly(not args.debug)", 15, id="unless an option that is off"),
        pytest.param("torch.autograd.set_detect_anomaly(OFF or ON)", 15, id="one of two"),
        pytest.param("if torch.cuda.is_available():\n    torch.autograd.set_detect_anomaly(True)", 16, id="on a GPU"),
        pytest.param('if __name__ == "__main__":\n    torch.autograd.set_detect_anomaly(True)', 16, id="behind the main guard"),
        pytest.param("with autograd.detect_anomaly():\n    loss.backward()", 15, id="context"),
        pytest.param("with torch.autograd.set_detect_anomaly(True):\n    loss.backward()", 15, id="switch as a context"),
        pytest.param("for x in loader:\n    with autograd.detect_anomaly():\n        loss.backward()", 16, id="in a loop"),
        pytest.param(
            "torch.autograd.set_detect_anomaly(True)\ntrain()\ntorch.autograd.set_detect_anomaly(False)", 15, id="around the training"
        ),
        pytest.param("def main():\n    torch.autograd.set_detect_anomaly(True)\nmain()", 16, id="in a function"),
        pytest.param("@hydra.main()\ndef main():\n    torch.autograd.set_detect_anomaly(True)", 17, id="in a decorated function"),
        pytest.param(
            "class Trainer:\n    def __init__(self):\n        torch.autograd.set_detect_anomaly(True)\nTrainer()", 17, id="in a constructor"
        ),
        pytest.param(
            "class Trainer:\n    def fit(self):\n        torch.autograd.set_detect_anomaly(True)\nTrainer().fit()", 17, id="in a method"
        ),
        pytest.param("import pytorch_lightning as pl\npl.Trainer(detect_anomaly=True)", 16, id="Lightning"),
        pytest.param("from lightning.pytorch import Trainer\nTrainer(detect_anomaly=ON)", 16, id="Lightning's new name"),
    ],
)
def test_left_on_is_advised(text: str, line: int) -> None:
    """Every spelling that turns detection on in a plain run is named at its place, and nothing is changed."""
    note = check_held(RULE, f"{HEAD}{text}\n", "advice")
    assert note.line == line


def test_class_of_another_file_that_is_used() -> None:
    """A method counts as run where another file of the project makes objects of its class."""
    text = "import torch\n\nclass Trainer:\n    def fit(self):\n        torch.autograd.set_detect_anomaly(True)\n"
    check_held(RULE, text, "advice", path="engine.py", modules={"main.py": "from engine import Trainer\nTrainer().fit()\n"})


def test_it_only_advises() -> None:
    """The rule says so of itself, and its example stays as it is."""
    rule = registry.find(RULE)
    assert rule.default is Default.ADVICE
    assert rule.before == rule.after
    check_held(rule, rule.before, "advice")
