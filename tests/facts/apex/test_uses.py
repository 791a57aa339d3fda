"""What counts as a use of Apex, and what a program asks it for."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.apex.uses import Request, request_of, uses_of
from torchfix.facts.obstacle import Obstacle


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param("import torch\ntorch.amp.autocast()", [], id="torch's own"),
        pytest.param("from .apex import amp\namp.initialize()", [], id="a module beside the file"),
        pytest.param("from apex import amp\ndef f(amp):\n    amp.initialize()", [], id="a parameter of that name"),
        pytest.param("from apex import amp\namp.initialize()", ["apex.amp.initialize"], id="a module"),
        pytest.param("import apex\napex.amp.state_dict()", ["apex.amp.state_dict"], id="the package"),
        pytest.param("import apex.amp as a\na.state_dict()", ["apex.amp.state_dict"], id="a module under another name"),
        pytest.param("from apex.amp import scale_loss as s\ns(x)", ["apex.amp.scale_loss"], id="a function"),
        pytest.param(
            "try:\n    from apex import amp\nexcept ImportError:\n    amp = None\nif amp:\n    amp.initialize()",
            ["apex.amp", "apex.amp.initialize"],
            id="an import that may fail",
        ),
        pytest.param(
            "def f():\n    global amp\n    from apex import amp\ndef g():\n    amp.master_params(o)",
            ["apex.amp.master_params"],
            id="global",
        ),
    ],
)
def test_uses(text: str, names: list[str]) -> None:
    """Whatever an import of Apex binds is followed to where it is read."""
    assert [use.name for use in uses_of(facts_of(text))] == names


def test_a_module_of_the_project_is_not_apex() -> None:
    """It hides the package."""
    assert uses_of(facts_of("from apex import amp\namp.initialize()", modules={"apex/__init__.py": "", "apex/amp.py": ""})) == ()


def asked(arguments: str, head: str = "") -> Request | Obstacle:
    """What a call with these arguments asks for."""
    facts = facts_of(f"from apex import amp\n{head}amp.initialize({arguments})")
    return request_of(uses_of(facts)[0])


@pytest.mark.parametrize(
    ("arguments", "head", "level"),
    [
        ("m, o", "", "O1"),
        ("m, o, True, 'O0'", "", "O0"),
        ("m, o, opt_level=level", "level = 'O1'\n", "O1"),
        ("models=m, optimizers=o, opt_level='O1'", "", "O1"),
    ],
)
def test_levels(arguments: str, head: str, level: str) -> None:
    """By position, by name, through a variable; O1 where nothing is said."""
    found = asked(arguments, head)
    assert isinstance(found, Request)
    assert (found.level, found.option) == (level, None)


def test_level_by_an_option() -> None:
    """The default is what a run has that sets no option."""
    head = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--level', default='O1')\nargs = p.parse_args()\n"
    found = asked("m, o, opt_level=args.level", head)
    assert isinstance(found, Request)
    assert found.option is not None and found.level == "O1"
    assert isinstance(asked("m, o, opt_level=args.level", head.replace("O1", "O2")), Obstacle)


@pytest.mark.parametrize(
    "arguments", ["m, o, opt_level='O2'", "m, o, opt_level=f'O{n}'", "*x", "m, **x", "m, o, cast_model_type=t", "", "m, loss_scale=s"]
)
def test_requests_without_a_twin(arguments: str) -> None:
    """Other levels, what changes a level, and what is hidden."""
    found = asked(arguments)
    assert isinstance(found, Obstacle) and found.help


def test_arguments_that_say_nothing() -> None:
    """None is what is left out, and True what is on."""
    found = asked("m, o, enabled=True, loss_scale='dynamic', keep_batchnorm_fp32=None")
    assert isinstance(found, Request)
    assert (found.enabled, found.scale, found.given("keep_batchnorm_fp32")) == (None, None, None)
