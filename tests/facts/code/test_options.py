"""Command-line options, followed from where they are read to where they are declared."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of, node

HEAD = "import argparse\np = argparse.ArgumentParser()\n"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("p.add_argument('--rate')\nargs = load()\nuse(args.rate)", id="not from the parser"),
        pytest.param("p.add_argument('--other')\nargs = p.parse_args()\nuse(args.rate)", id="not declared"),
        pytest.param("p.add_argument('--rate')\nq.add_argument('--rate')\nargs = p.parse_args()\nuse(args.rate)", id="declared twice"),
    ],
)
def test_option_that_is_not_known(text: str) -> None:
    """Without one declaration and one parser there is no answer."""
    facts = facts_of(HEAD + text)
    option = node(facts, "args.rate")
    assert isinstance(option, ast.Attribute)
    assert facts.options.declaration(option) is None


@pytest.mark.parametrize("declared", ["'--rate'", "'-r', '--rate'", "'--learning', dest='rate'", "'rate'"])
def test_option_is_found_under_its_names(declared: str) -> None:
    """Long names, positional ones and ``dest`` name the attribute, through functions that take the options."""
    facts = facts_of(f"{HEAD}p.add_argument({declared})\ndef f(args):\n    use(args.rate)\nf(p.parse_args())\n")
    option = node(facts, "args.rate")
    assert isinstance(option, ast.Attribute)
    found = facts.options.declaration(option)
    assert found is not None
    assert ast.unparse(found.node) == f"p.add_argument({declared})"


def test_option_that_the_program_sets_itself() -> None:
    """``args.device = ...`` is seen where ``args.device`` is read in another function."""
    facts = facts_of(f"{HEAD}def f(args):\n    use(args.device)\nargs = p.parse_args()\nargs.device = make()\nf(args)\n")
    option = node(facts, "args.device")
    assert isinstance(option, ast.Attribute)
    assert [ast.unparse(value.node) for value in facts.options.assigned(option)] == ["make()"]


def test_option_declared_through_a_variable_that_holds_the_method() -> None:
    """``arg = parser.add_argument`` is a way to write less."""
    facts = facts_of(f"{HEAD}arg = p.add_argument\narg('--rate')\nargs = p.parse_args()\nuse(args.rate)")
    option = node(facts, "args.rate")
    assert isinstance(option, ast.Attribute)
    found = facts.options.declaration(option)
    assert found is not None
    assert ast.unparse(found.node) == "arg('--rate')"


def test_option_declared_where_the_parser_is_made() -> None:
    """Another file may make the parser that a script asks for its arguments."""
    parser = "import argparse\ndef parser():\n    p = argparse.ArgumentParser()\n    p.add_argument('--rate')\n    return p\n"
    facts = facts_of("from arguments import parser\nargs = parser().parse_args()\nuse(args.rate)", modules={"arguments.py": parser})
    option = node(facts, "args.rate")
    assert isinstance(option, ast.Attribute)
    found = facts.options.declaration(option)
    assert found is not None
    assert found.facts.path == "arguments.py"
