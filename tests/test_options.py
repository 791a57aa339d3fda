"""A rule's own options, out of its table in the configuration file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest

from tests.toys import EXPLICIT, Options
from torchfix.options import rule_options
from torchfix.settings import Settings, resolve
from torchfix.usage import UsageError


def from_file(document: dict[str, Any], **command_line: object) -> Settings:
    return resolve(command_line, document, "torchfix.toml", "/here")


def test_rule_options_are_the_rules_own_defaults() -> None:
    """A rule without a table has the options that it declares."""
    assert rule_options(EXPLICIT, Settings()) == Options()


def test_rule_options_come_from_the_rules_table() -> None:
    """Keys of a rule's table are the fields of its options with dashes."""
    settings = from_file({"rules": {"toy-size": {"size": "3", "most": 4}}})

    assert rule_options(EXPLICIT, settings) == Options(size="3", most=4)


def test_an_option_of_the_run_reaches_the_rules_that_have_it() -> None:
    """``--num-workers`` fills the option of that name of any rule."""
    assert rule_options(EXPLICIT, Settings(num_workers="args.workers")) == Options(num_workers="args.workers")


def test_a_rules_table_wins_over_the_runs_option_in_the_file_but_not_over_the_command_line() -> None:
    """Of two values in the file the more special one holds; what is typed holds over both."""
    document = {"num-workers": 2, "rules": {"toy-size": {"num-workers": 3}}}

    assert rule_options(EXPLICIT, from_file(document)).num_workers == "3"
    assert rule_options(EXPLICIT, from_file(document, num_workers="4")).num_workers == "4"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"sise": "3"}, "rules.toy-size.sise: the rule has no such option; nearest: size"),
        ({"qq": "3"}, "rules.toy-size.qq: the rule has no such option; it knows size, num-workers, most"),
        ({"most": "3"}, "rules.toy-size.most: expected a whole number, found '3'"),
        ({"most": True}, "rules.toy-size.most: expected a whole number, found True"),
        ({"num-workers": True}, "rules.toy-size.num-workers: expected a Python expression, found True"),
        ({"num-workers": "4 4"}, "rules.toy-size.num-workers: '4 4' is no Python expression"),
    ],
)
def test_a_wrong_option_of_a_rule_is_refused(table: dict[str, Any], words: str) -> None:
    """An unknown option or one of another type is an error that names the rule, the option and what would be right."""
    with pytest.raises(UsageError, match=words):
        rule_options(EXPLICIT, from_file({"rules": {"toy-size": table}}))


@dataclass(frozen=True)
class ManyTypes:
    """Options of every type that TOML can fill."""

    names: tuple[str, ...] = ()
    share: float = 0.5
    policy: Literal["global", "local"] = "global"


def test_options_of_other_types() -> None:
    """Lists become tuples, whole numbers do for others, and a choice takes only its own words."""
    rule = replace(EXPLICIT, options=ManyTypes)

    def given(table: dict[str, Any]) -> Any:
        return rule_options(rule, from_file({"rules": {"toy-size": table}}))

    assert given({"names": ["a"], "share": 1, "policy": "local"}) == ManyTypes(("a",), 1, "local")
    with pytest.raises(UsageError, match="names: expected a list, each text in quotes, found"):
        given({"names": [1]})
    with pytest.raises(UsageError, match="policy: expected one of 'global', 'local', found 'both'"):
        given({"policy": "both"})
