"""How variables that a forward pass fills with half precision are converted back to float32: where, and with what statement."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchfix.facts.code.tree import walk
from torchfix.facts.half_precision.spelling import Spelling

if TYPE_CHECKING:
    from torchfix.facts import Facts


def conversion(facts: Facts, regions: Iterable[tuple[ast.stmt, ast.stmt]], name: ast.Name) -> tuple[ast.stmt, str]:
    """The statement behind which a variable is converted, and the statement that converts it.

    Conversions stand together behind their region, unless something in it reads the variable before.

    Args:
        facts: the file.
        regions: the first and last statement of each stretch that runs under autocast.
        name: where the variable is bound: alone, to a tuple, or to one tensor of several that are unpacked.
    """
    tree, statement = facts.tree, facts.tree.statement(name)
    converted = _converted(facts, name) if isinstance(tree.parent(name), ast.Assign) else f"{name.id}.float()"
    for first, last in regions:
        block = tree.block(first)
        region = block[block.index(first) : block.index(last) + 1]
        if statement in region:
            behind = region[region.index(statement) + 1 :]
            read = any(isinstance(node, ast.Name) and node.id == name.id for item in behind for node in walk(item))
            return (statement if read else last), f"{name.id} = {converted}"
    return statement, f"{name.id} = {converted}"


def _converted(facts: Facts, name: ast.Name) -> str:
    """The elements of a tuple, of which those of another kind stay as they are."""
    item, tensor = facts.names.fresh("item", "value"), Spelling(facts, name).torch("Tensor")
    half = f"isinstance({item}, {tensor}) and {item}.is_floating_point()"
    return f"tuple({item}.float() if {half} else {item} for {item} in {name.id})"
