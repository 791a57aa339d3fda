"""Which rules there are, and which of them a run uses."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ended
from tests.toys import EXPLICIT, FUTURE, SLEEPING, TOYS
from torchfix import registry
from torchfix.transform import Transform
from torchfix.usage import UsageError


def names(transforms: tuple[Transform, ...]) -> list[str]:
    return [transform.name for transform in transforms]


def test_nothing_asked_for_leaves_out_what_is_off() -> None:
    """Without a selection every rule runs that is not off by default."""
    assert names(registry.select(TOYS, (), ())) == ["future-toy", "toy-size"]


def test_a_name_turns_on_what_is_off() -> None:
    """A rule that is off runs when it is selected by name, and then only what was selected runs."""
    assert registry.select(TOYS, ("toy-sleep",), ()) == (SLEEPING,)


def test_a_group_turns_on_what_is_off() -> None:
    """A group stands for all of its rules, those that are off included."""
    assert registry.select(TOYS, ("toys",), ()) == (EXPLICIT, SLEEPING)


def test_ignoring_wins_over_selecting() -> None:
    """A rule that is both selected and ignored does not run."""
    assert registry.select(TOYS, ("toys",), ("toy-size",)) == (SLEEPING,)


def test_ignoring_a_group() -> None:
    """An ignored group takes all of its rules out of the default."""
    assert registry.select(TOYS, (), ("toys",)) == (FUTURE,)


@pytest.mark.parametrize("chosen", [("toy-sise",), ()])
def test_an_unknown_name_is_an_error_with_the_nearest(chosen: tuple[str, ...]) -> None:
    """An unknown name is refused wherever it stands, with the known one that looks most like it."""
    with pytest.raises(UsageError, match="no rule or group toy-sise; nearest: toy-size"):
        registry.select(TOYS, chosen, ("toy-sise",) if not chosen else ())


def test_an_unknown_name_like_no_other_points_to_the_list() -> None:
    """Where nothing is near, the message says how to see all names."""
    with pytest.raises(UsageError, match=r"no rule or group qqqq \('torchfix rules' lists them all\)"):
        registry.select(TOYS, ("qqqq",), ())


def test_our_own_rules_are_found_by_walking_their_package() -> None:
    """Every module of the package offers one transform, and its name is the module's."""
    package = Path(importlib.import_module(registry.PACKAGE).__path__[0])
    modules = sorted(path.stem for path in package.glob("*.py") if path.stem != "__init__")

    found = sorted(transform.name.replace("-", "_") for transform in registry.discover())

    assert modules == found


def test_rules_come_by_group_and_name() -> None:
    """Discovery order has no meaning: rules are sorted."""
    found = [(transform.group, transform.name) for transform in registry.discover()]
    assert found == sorted(found)


def test_no_rule_has_the_name_of_a_group() -> None:
    """Selecting a word can never mean a rule and a group at once."""
    assert not {transform.name for transform in registry.discover()} & {transform.group for transform in registry.discover()}


def test_a_plugin_brings_its_rule(torchfix_process: Callable[..., Ended]) -> None:
    """A transform behind an entry point of another distribution is listed like our own."""
    ended = torchfix_process("rules", "toy-size")

    assert (ended.code, ended.error) == (0, "")
    assert "A toy of unknown size is built twice." in ended.text


@pytest.mark.parametrize("text", [None, "EXPLICIT = Toy(", "EXPLICIT = Toy()", "EXPLICIT = int('toy')"])
def test_a_plugin_that_cannot_be_loaded_is_named(torchfix_process: Callable[..., Ended], plugin: Path, text: str | None) -> None:
    """A plugin whose module is missing or faulty ends the command with its name and what to do."""
    (plugin / "plugin_of_toys.py").unlink()
    if text is not None:
        (plugin / "plugin_of_toys.py").write_text(text)

    ended = torchfix_process("rules")

    assert ended.code == 2
    assert ended.error.startswith("error: the plugin toy-size (plugin_of_toys:EXPLICIT) cannot be loaded")


def test_a_plugin_that_offers_something_else_is_named(torchfix_process: Callable[..., Ended], plugin: Path) -> None:
    """An entry point that leads to no transform is refused by name."""
    (plugin / "toys-1.0.dist-info" / "entry_points.txt").write_text("[torchfix.transforms]\nodd = plugin_of_toys:Options\n")

    ended = torchfix_process("rules")

    assert ended.code == 2
    assert "the plugin odd (plugin_of_toys:Options) offers no transform" in ended.error


def test_two_rules_of_one_name_are_an_error(torchfix_process: Callable[..., Ended], plugin: Path) -> None:
    """A name belongs to one rule."""
    points = "[torchfix.transforms]\na = plugin_of_toys:EXPLICIT\nb = plugin_of_toys:EXPLICIT\n"
    (plugin / "toys-1.0.dist-info" / "entry_points.txt").write_text(points)

    ended = torchfix_process("rules")

    assert ended.code == 2
    assert "offers the rule toy-size, which exists already" in ended.error


def test_without_docstrings_there_are_no_rules(torchfix_process: Callable[..., Ended]) -> None:
    """Python's second optimization drops what the rules say of themselves, and the command says how to have it back."""
    ended = torchfix_process("rules", PYTHONOPTIMIZE="2")

    assert (ended.code, ended.out) == (2, b"")
    assert ended.error.endswith("unset PYTHONOPTIMIZE\n")
