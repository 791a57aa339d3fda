"""Where an optimizer's state is saved and loaded, in places that see what stands beside the optimizer."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts import Facts


def variable(facts: Facts) -> tuple[ast.Name, ast.stmt]:
    """The optimizer's name and the statement that makes it."""
    name = node(facts, "o")
    assert isinstance(name, ast.Name)
    return name, facts.tree.statement(name)


def saved(text: str) -> list[str]:
    """The dictionaries that hold the state, with one more entry."""
    facts = facts_of(text)
    return [item.with_entry("scaler", "s.state_dict()") for item in facts.states.saved(*variable(facts))]


@pytest.mark.parametrize(
    ("dictionary", "expected"),
    [
        pytest.param('{"o": o.state_dict()}', '{"o": $value0, "scaler": s.state_dict()}', id="one entry"),
        pytest.param("{'e': 1, 'o': o.state_dict(),}", "{'e': $value0, 'o': $value1, 'scaler': s.state_dict(),}", id="a comma at the end"),
        pytest.param(
            "{\n    'e': (1),\n    'o': o.state_dict()\n}",
            "{\n    'e': ($value0),\n    'o': $value1,\n    'scaler': s.state_dict()\n}",
            id="a line each",
        ),
        pytest.param("{'o': (o.state_dict())}", "{'o': ($value0), 'scaler': s.state_dict()}", id="parentheses around the last value"),
        pytest.param(
            "{\n        'o': (\n            o.state_dict()\n        ),\n    }",
            "{\n        'o': (\n            $value0\n        ),\n        'scaler': s.state_dict(),\n    }",
            id="parentheses on lines of their own",
        ),
    ],
)
def test_an_entry_is_added_in_the_dictionarys_own_layout(dictionary: str, expected: str) -> None:
    """Its quotes, its lines and its last comma."""
    assert saved(f"o = make()\nsave({dictionary})\n") == [expected]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("o = make()\nsave({'o': other.state_dict()})\n", id="another object"),
        pytest.param("o = make()\nsave({**more, 'o': o.state_dict()})\n", id="entries out of sight"),
        pytest.param("o = make()\nsave({KEY: o.state_dict()})\n", id="a key that is no word"),
        pytest.param("o = make()\nsave({'o': o.state_dict()  # all\n})\n", id="a comment inside"),
        pytest.param("o = make()\nsave(o.state_dict())\n", id="no dictionary"),
        pytest.param("def save():\n    write({'o': o.state_dict()})\n\n\ndef main():\n    o = make()\n", id="out of its function's sight"),
    ],
)
def test_other_forms_are_left(text: str) -> None:
    """Nothing is guessed."""
    facts = facts_of(text)
    name = node(facts, "o", text.count("o.state") if "def" in text else 0)
    assert isinstance(name, ast.Name)
    assert list(facts.states.saved(name, facts.tree.statement(name))) == []


def test_a_global_is_seen_in_functions_and_behind_its_statement() -> None:
    """Not in front of it."""
    assert len(saved("o = make()\n\n\ndef keep():\n    save({'o': o.state_dict()})\n")) == 1
    assert len(saved("o = make()\nsave({'o': o.state_dict()})\n")) == 1
    facts = facts_of("save({'o': o.state_dict()})\no = make()\n")
    name = node(facts, "o", 1)
    assert isinstance(name, ast.Name)
    assert list(facts.states.saved(name, facts.tree.statement(name))) == []


def test_states_are_loaded_from_a_dictionary_with_a_name() -> None:
    """Attributes count as names; a call does not."""
    facts = facts_of("o = make()\no.load_state_dict(c['o'])\no.load_state_dict(self.c['o'])\no.load_state_dict(torch.load(p)['o'])\n")
    assert [item.name for item in facts.states.loaded(*variable(facts))] == ["c", "self.c"]


def test_a_key_that_the_file_uses_already_is_not_free() -> None:
    """Whatever it uses it for."""
    facts = facts_of("a = {'scaler': 1}\n")
    assert facts.states.free_key("scaler", "grad_scaler") == "grad_scaler"
    assert facts.states.free_key("scaler") is None


def test_a_state_that_is_kept_in_any_form_is_known() -> None:
    """So that the user can be told."""
    facts = facts_of("o = make()\nsave(o.state_dict())\n")
    assert facts.states.are_kept(variable(facts)[0])
    facts = facts_of("o = make()\nsave(other.state_dict())\n")
    assert not facts.states.are_kept(variable(facts)[0])


WRAPPED = """\
import torch

class Wrapper:
    def __init__(self, optimizer):
        self.inner = optimizer
        self.rate = 1

o = Wrapper(torch.optim.SGD(parameters, lr=0.1))
o.inner.load_state_dict(state["o"])
save({{"o": {saved}}})
"""


@pytest.mark.parametrize(("saved_as", "count"), [("o.inner.state_dict()", 1), ("o.state_dict()", 1), ("o.rate.state_dict()", 0)])
def test_the_state_of_the_optimizer_inside_an_object_is_the_objects(saved_as: str, count: int) -> None:
    """Old files hold the inner optimizer's under the same key."""
    facts = facts_of(WRAPPED.format(saved=saved_as))
    (name,) = (
        item for item in ast.walk(facts.source.tree) if isinstance(item, ast.Name) and item.id == "o" and isinstance(item.ctx, ast.Store)
    )
    after = facts.tree.statement(name)
    assert len(list(facts.states.saved(name, after))) == count
    assert [item.name for item in facts.states.loaded(name, after)] == ["state"]
