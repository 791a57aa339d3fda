"""Attention that is written by hand: the softmax of a product of tensors, times a third one, with all that happens in between.

Followed from the softmax both ways, through the statements of one block: back to the product of queries and keys, past scales and masks,
and on to the product with the values, past dropout.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import argument, has_stars, is_constant, receiver
from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import dotted, last_name, walk
from torchfix.facts.code.values import Value, is_default, passed
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.tensors.attention_weights import callers, is_returned_for_nothing
from torchfix.facts.tensors.products import Product, product_of, untransposed

if TYPE_CHECKING:
    from torchfix.facts import Facts

_SOFTMAX = ("torch.softmax", "torch.nn.functional.softmax")
_DROPOUT = "torch.nn.functional.dropout"
_SDPA = "scaled_dot_product_attention"
_CASTS = ("to", "type", "type_as", "float", "half", "bfloat16", "double")
_OPERATORS: dict[str, ast.operator] = {"mul": ast.Mult(), "div": ast.Div(), "add": ast.Add(), "sub": ast.Sub()}

_WEIGHTS_USED = Obstacle(
    "weights-used", "the scores or the attention weights are used otherwise too", "return None for them where nobody reads them"
)
_SCORES_CHANGED = Obstacle("scores-changed", "the scores are changed in a way that torch's attention does not know", "leave it as it is")
_SOFTMAX_CAST = Obstacle("softmax-cast", "the softmax runs in a precision of its own", "torch's attention computes in float32 inside")
_BRANCHES = Obstacle("several-branches", "the softmax and the product with the values stand in different blocks", "leave it as it is")
_DROPOUT_UNKNOWN = Obstacle("dropout-not-known", "what the attention weights pass is not surely dropout", "use one nn.Dropout")
_OPERANDS_CHANGE = Obstacle(
    "operands-change", "what the scores are made of is written again before the values are weighed", "move it behind the product"
)
_LAYOUT = Obstacle("layout-not-seen", "which dimensions are multiplied is not seen", "transpose the keys in the product itself")


class Masking(enum.Enum):
    """What a mask does to the scores."""

    FILL = "fill"  # scores are replaced where the condition holds
    KEEP = "keep"  # scores are replaced where the condition does not hold
    ADD = "add"
    SUBTRACT = "subtract"


@dataclass(frozen=True, eq=False)
class Scale:
    """A factor of the scores; ``guard`` is the condition under which it is applied, None for always."""

    factor: ast.expr
    divides: bool
    guard: ast.expr | None = None


@dataclass(frozen=True, eq=False)
class Mask:
    """A mask of the scores: what it is made of, what it fills with, and the condition under which it is applied."""

    how: Masking
    operand: ast.expr
    fill: ast.expr | None = None
    guard: ast.expr | None = None


@dataclass(frozen=True, eq=False)
class Dropout:
    """Dropout of the weights: a call of torch's function, or of an ``nn.Dropout``."""

    call: ast.Call
    is_function: bool
    guard: ast.expr | None = None


@dataclass(frozen=True, eq=False)
class Attention:
    """Attention that torch's own function can compute.

    Args:
        softmax: the call.
        query, key, value: the operands; of matrix products the key is given with its length before its features.
        scores, output: the two products.
        scales, masks: in the order in which they are applied.
        statements: those that compute nothing else, in text order.
        returned: where the function returns weights that none of its callers reads.
    """

    softmax: ast.Call
    query: ast.expr
    key: ast.expr
    value: ast.expr
    scores: Product
    output: Product
    scales: tuple[Scale, ...]
    masks: tuple[Mask, ...]
    dropout: Dropout | None
    statements: tuple[ast.stmt, ...]
    returned: tuple[ast.Name, ...] = ()


def attentions(facts: Facts) -> Iterator[tuple[ast.Call, Attention | Obstacle]]:
    """The softmaxes of a file that are attention, each with what was read of it or what stands in the way."""
    for call in _calls(facts):
        operand = _operand(facts, call)
        if operand is None or facts.tree.function(call) is None or _is_fallback(facts, call):
            continue
        found = _Reader(facts, call).read(*operand)
        if found is not None:
            yield call, found


def _calls(facts: Facts) -> list[ast.Call]:
    """The calls that may be a softmax, in text order: by name, and of modules whose name the file chose."""
    made = [call for call in facts.tree.calls.get("Softmax", ()) if facts.calls.meaning(call) == "torch.nn.Softmax"]
    kept = {last_name(target) for call in made if isinstance(parent := facts.tree.parent(call), ast.Assign) for target in parent.targets}
    found = [call for name in {"softmax", *(name for name in kept if name)} for call in facts.tree.calls.get(name, ())]
    found += [outer for call in made if isinstance(outer := facts.tree.parent(call), ast.Call) and outer.func is call]
    return sorted(set(found), key=lambda call: (call.lineno, call.col_offset))


def _is_fallback(facts: Facts, call: ast.Call) -> bool:
    """Whether the code around has torch's attention already, and this one for where that is missing."""
    function = facts.tree.function(call)
    return function is not None and any(facts.tree.is_within(use, function) for use in facts.tree.calls.get(_SDPA, ()))


def _operand(facts: Facts, call: ast.Call) -> tuple[ast.expr, int] | None:
    """What a softmax is taken of, and over which dimension; None for any other call, and for a dimension that is not the last."""
    if has_stars(call):
        return None
    meaning = facts.calls.meaning(call)
    inner, dimension = None, None
    if meaning in _SOFTMAX:
        inner, dimension = argument(call, "input", 0), _last(argument(call, "dim", 1))
    elif meaning is None and last_name(call.func) == "softmax" and (call.keywords or not _modules(facts, call.func)):
        inner, dimension = receiver(call), _last(argument(call, "dim", 0))
    elif len(call.args) == 1 and (made := _modules(facts, call.func)) and all(name == "torch.nn.Softmax" for name, _ in made):
        dimensions = {_last(argument(node, "dim", 0)) for _, node in made}
        inner, dimension = call.args[0], dimensions.pop() if len(dimensions) == 1 else None
    return (inner, dimension) if inner is not None and dimension is not None else None


def _last(dimension: ast.expr | None) -> int | None:
    """A dimension that may be the last one, where scores have three dimensions or four."""
    if isinstance(dimension, ast.UnaryOp) and isinstance(dimension.op, ast.USub) and is_constant(dimension.operand, 1):
        return -1
    return next((number for number in (2, 3) if is_constant(dimension, number)), None)


def _modules(facts: Facts, function: ast.expr) -> list[tuple[str, ast.Call]]:
    """The classes of torch that a called module may be of, each with the call that makes it; empty where one is not known.

    None is passed over, since it cannot be called. A parameter of a forward pass is what all calls of the module give for it.
    """
    if isinstance(function, ast.Call):
        return [(facts.calls.meaning(function) or "", function)]
    values = facts.values.of(function)
    if values is None and isinstance(function, ast.Name):
        values = _given(facts, function)
    found = []
    for value in values or ():
        if value.is_none:
            continue
        if not isinstance(value.node, ast.Call) or value.path:
            return []
        found.append((value.facts.calls.meaning(value.node) or "", value.node))
    return found


def _given(facts: Facts, name: ast.Name) -> tuple[Value, ...] | None:
    """What the calls of a module give for a parameter of its forward pass."""
    bindings, function = facts.flow.reaching(name), facts.tree.function(name)
    parameter = bindings[0].node if len(bindings) == 1 and bindings[0].how is Bound.PARAMETER else None
    calls = callers(facts, function) if function is not None and isinstance(parameter, ast.arg) else None
    if function is None or not isinstance(parameter, ast.arg) or not calls:
        return None
    found: list[Value] = []
    for there, call in calls:
        given = passed(call, function, parameter, True)
        home = facts if given is not None and is_default(given, function) else there
        values = home.values.of(given) if given is not None else None
        if values is None:
            return None
        found += values
    return tuple(found)


class _Reader:
    """One softmax, followed both ways through the block that it stands in."""

    def __init__(self, facts: Facts, softmax: ast.Call) -> None:
        self._facts = facts
        self._softmax = softmax
        self._block = facts.tree.block(facts.tree.statement(softmax))
        self._steps: list[Scale | Mask] = []  # the last one first
        self._dropout: Dropout | None = None
        self._removed: list[ast.stmt] = []  # what computes nothing else
        self._returned: list[ast.Name] = []
        self._passed: set[ast.AST] = set()  # the names through which scores and weights pass
        self._pieces: list[tuple[ast.expr, int]] = []  # what the result is made of, and at which statement each is read
        self._obstacle = _SOFTMAX_CAST if argument(softmax, "dtype") is not None else None

    def read(self, operand: ast.expr, dimension: int) -> Attention | Obstacle | None:
        """The attention, or what stands in its way; None where the softmax is none of it."""
        start = self._block.index(self._facts.tree.statement(self._softmax))
        output = self._onward()
        scores = self._back(operand, start) if output is not None else None
        if output is None or scores is None or self._obstacle is _BRANCHES:
            return self._obstacle or _SCORES_CHANGED if output is not None and self._is_product(operand) else None
        product, place = scores
        query, key, dimensions = product.left, product.right, product.dimensions
        if product.indexes is None:
            turned = untransposed(key)
            if turned is None or output.indexes is not None:
                return self._obstacle or _LAYOUT
            key, dimensions = turned[0], turned[1] or dimensions
        else:
            dimensions = len(product.indexes[2])
        if dimension not in (-1, (dimensions or 0) - 1):
            return self._obstacle or _LAYOUT
        query, read_at = self._unscaled(query, place)
        end = self._block.index(self._facts.tree.statement(output.node))
        self._pieces += [(query, read_at), (key, place), (output.right, end)]
        found = self._obstacle or self._used_elsewhere() or self._changed(end)
        if found is not None:
            return found
        steps = self._steps[::-1]
        scales = tuple(step for step in steps if isinstance(step, Scale))
        masks = tuple(step for step in steps if isinstance(step, Mask))
        masked = [place for place, step in enumerate(steps) if isinstance(step, Mask) and not _is_infinite(step)]
        if masked and any(isinstance(step, Scale) for step in steps[masked[0] :]):
            return _SCORES_CHANGED
        removed = tuple(sorted(self._removed, key=lambda item: item.lineno))
        return Attention(
            self._softmax,
            query,
            key,
            output.right,
            product,
            output,
            scales,
            masks,
            self._dropout,
            removed,
            tuple(dict.fromkeys(self._returned)),
        )

    # From the softmax to the product with the values ---------------------------------------------------------------

    def _onward(self) -> Product | None:
        """The product that the weights are the left operand of."""
        tree = self._facts.tree
        current: ast.expr = self._softmax
        while True:
            outer = tree.parent(current)
            product = self._weighed(current)
            if product is not None:
                return product
            if isinstance(outer, ast.Call) and outer.args[:1] == [current]:
                self._drop(outer, None)
                current = outer
            elif isinstance(outer, ast.Attribute) and isinstance(call := tree.parent(outer), ast.Call) and outer.attr in _CASTS:
                self._obstacle = self._obstacle or _SOFTMAX_CAST
                current = call
            elif isinstance(outer, (ast.Assign, ast.AnnAssign)) and outer.value is current and outer in self._block:
                target = _target(outer)
                if target is None:
                    return None
                self._removed.append(outer)
                found = self._next_use(target.id, self._block.index(outer))
                if found is None:
                    return self._in_another_block(target)
                current = found
            else:
                return None

    def _weighed(self, weights: ast.expr) -> Product | None:
        """The product whose left operand some weights are."""
        outer = self._facts.tree.parent(weights)
        outer = self._facts.tree.parent(outer) if isinstance(outer, ast.Attribute) else outer
        product = product_of(self._facts, outer) if isinstance(outer, ast.expr) else None
        return product if product is not None and product.left is weights else None

    def _next_use(self, name: str, place: int) -> ast.Name | None:
        """Where a later statement of the block takes the weights on; dropout under a condition is passed."""
        for statement in self._block[place + 1 :]:
            uses = [node for node in walk(statement) if isinstance(node, ast.Name) and node.id == name]
            if not uses:
                continue
            if isinstance(statement, ast.If) and self._drops_under_condition(statement, name):
                continue
            for use in uses:
                outer = self._facts.tree.parent(use)
                weighs = self._weighed(use) is not None
                passes = (
                    isinstance(outer, ast.Call) and outer.args[:1] == [use] and not isinstance(self._facts.tree.parent(outer), ast.Expr)
                )
                if isinstance(use.ctx, ast.Load) and self._facts.tree.statement(use) is statement and (weighs or passes):
                    self._passed.add(use)
                    return use
            if any(isinstance(use.ctx, ast.Store) for use in uses):
                return None
        return None

    def _in_another_block(self, target: ast.Name) -> Product | None:
        """The product that weights of the same name enter elsewhere in the function: where this softmax is one of several."""
        self._obstacle = self._obstacle or _BRANCHES
        products = (self._weighed(use) for use in self._facts.names.uses(target) if self._is_behind(use, target))
        return next((product for product in products if product is not None), None)

    def _is_behind(self, use: ast.Name, target: ast.Name) -> bool:
        return use.lineno > target.lineno and self._facts.tree.statement(use) not in self._block

    def _drops_under_condition(self, statement: ast.If, name: str) -> bool:
        inner = statement.body[0]
        if len(statement.body) != 1 or statement.orelse or not isinstance(inner, ast.Assign):
            return False
        target, call = _target(inner), inner.value
        if target is None or target.id != name or not isinstance(call, ast.Call) or not call.args:
            return False
        if not isinstance(call.args[0], ast.Name) or call.args[0].id != name:
            return False
        self._passed.add(call.args[0])
        self._removed.append(statement)
        self._drop(call, statement.test)
        return True

    def _drop(self, call: ast.Call, guard: ast.expr | None) -> None:
        """Note a call that the weights pass: dropout, or something that is not known to be that."""
        made = _modules(self._facts, call.func)
        if self._facts.calls.meaning(call) == _DROPOUT:
            known = True
        else:
            known = bool(made) and all(name == "torch.nn.Dropout" for name, _ in made) and len(call.args) == 1 and not call.keywords
        if not known or self._dropout is not None:
            self._obstacle = self._obstacle or _DROPOUT_UNKNOWN
        self._dropout = Dropout(call, self._facts.calls.meaning(call) == _DROPOUT, guard)
        read = [*call.args[1:], *(word.value for word in call.keywords), *([guard] if guard is not None else [])]
        self._pieces += [(item, self._place(call)) for item in read]

    def _place(self, node: ast.AST) -> int:
        """The number of the block's statement that holds a node."""
        return next(place for place, statement in enumerate(self._block) if self._facts.tree.is_within(node, statement))

    # From the softmax back to the product of queries and keys -----------------------------------------------------------

    def _back(self, expression: ast.expr, place: int) -> tuple[Product, int] | None:
        """The product that the scores are, and the statement in which it stands."""
        current: ast.expr | None = expression
        while current is not None:
            product = product_of(self._facts, current)
            if product is not None:
                return product, place
            if isinstance(current, ast.Name):
                found = self._made(current, place)
                if found is None:
                    return None
                current, place = found
            else:
                current = self._peeled(current, place, None)
        return None

    def _made(self, name: ast.Name, place: int) -> tuple[ast.expr, int] | None:
        """What an earlier statement of the block assigned to a variable; statements that change it on the way are noted."""
        self._passed.add(name)
        for before in range(place - 1, -1, -1):
            statement = self._block[before]
            uses = [node for node in walk(statement) if isinstance(node, ast.Name) and node.id == name.id]
            if not uses:
                continue
            target = _target(statement)
            if target is not None and target.id == name.id and isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value:
                self._removed.append(statement)
                return statement.value, before
            if self._changes(statement, name.id, before, None):
                self._removed.append(statement)
            elif isinstance(statement, ast.If) and not statement.orelse:
                inner = [item for item in statement.body if any(use in walk(item) for use in uses)]
                if len(inner) != 1 or not self._changes(inner[0], name.id, before, statement.test):
                    return None
                self._removed.append(statement if len(statement.body) == 1 else inner[0])
            elif any(isinstance(use.ctx, ast.Store) for use in uses):
                return None
        return None

    def _changes(self, statement: ast.stmt, name: str, place: int, guard: ast.expr | None) -> bool:
        """Note how a statement changes the scores that a variable holds; False where it is no such statement."""
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name) and statement.target.id == name:
            self._passed.add(statement.target)
            return self._operate(statement.op, statement.value, place, guard)
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            call = statement.value
            owner, method = receiver(call), last_name(call.func) or ""
            if isinstance(owner, ast.Name) and owner.id == name and method.endswith("_"):
                self._passed.add(owner)
                return self._call(call, method[:-1], owner, list(call.args), place, guard) is owner
            return False
        target = _target(statement)
        if target is None or target.id != name or not isinstance(statement, ast.Assign) or guard is None:
            return False
        current: ast.expr | None = statement.value
        while current is not None and not isinstance(current, ast.Name):
            current = self._peeled(current, place, guard)
        if current is None or current.id != name:
            return False
        self._passed.add(current)
        return True

    def _peeled(self, node: ast.expr, place: int, guard: ast.expr | None) -> ast.expr | None:
        """The scores before the step that an expression is; None where it is none."""
        if isinstance(node, ast.BinOp):
            left, right = self._leads(node.left, place), self._leads(node.right, place)
            if left == right:
                return None
            inner, other = (node.left, node.right) if left else (node.right, node.left)
            commutes = isinstance(node.op, (ast.Mult, ast.Add))
            return inner if (left or commutes) and self._operate(node.op, other, place, guard) else None
        if not isinstance(node, ast.Call) or has_stars(node):
            return None
        owner, name = receiver(node), last_name(node.func) or ""
        meaning = self._facts.calls.meaning(node) or ""
        if meaning.startswith("torch."):
            return self._call(node, name, node.args[0], list(node.args[1:]), place, guard) if node.args else None
        if meaning or owner is None:
            return self._unknown(node, place)
        return self._call(node, name, owner, list(node.args), place, guard)

    def _call(
        self, node: ast.Call, name: str, inner: ast.expr, given: list[ast.expr], place: int, guard: ast.expr | None
    ) -> ast.expr | None:
        """Note a step that a function or method of torch is; the scores before it."""
        if not node.keywords and name == "masked_fill" and len(given) == 2:
            return inner if self._note(Mask(Masking.FILL, given[0], given[1], guard), place) else None
        if not node.keywords and name in _OPERATORS and len(given) == 1:
            return inner if self._operate(_OPERATORS[name], given[0], place, guard) else None
        if not node.keywords and name == "where" and len(given) == 2 and self._facts.calls.meaning(node) == "torch.where":
            kept = self._leads(given[0], place)
            scores, fill = given if kept else given[::-1]
            how = Masking.KEEP if kept else Masking.FILL
            return scores if self._leads(scores, place) and self._note(Mask(how, inner, fill, guard), place) else None
        return self._unknown(node, place)

    def _operate(self, operator: ast.operator, other: ast.expr, place: int, guard: ast.expr | None) -> bool:
        if isinstance(operator, (ast.Mult, ast.Div)):
            return self._note(Scale(other, isinstance(operator, ast.Div), guard), place)
        if isinstance(operator, (ast.Add, ast.Sub)):
            return self._note(Mask(Masking.ADD if isinstance(operator, ast.Add) else Masking.SUBTRACT, other, None, guard), place)
        return False

    def _note(self, step: Scale | Mask, place: int) -> bool:
        self._steps.append(step)
        read = (step.factor, step.guard) if isinstance(step, Scale) else (step.operand, step.fill, step.guard)
        self._pieces += [(item, place) for item in read if item is not None]
        return True

    def _unknown(self, node: ast.Call, place: int) -> ast.expr | None:
        """The scores before a step that torch's attention does not know."""
        inner = next((item for item in (receiver(node), *node.args) if item is not None and self._leads(item, place)), None)
        if inner is not None:
            self._obstacle = self._obstacle or (_SOFTMAX_CAST if last_name(node.func) in _CASTS else _SCORES_CHANGED)
        return inner

    def _leads(self, node: ast.expr, place: int) -> bool:
        """Whether an expression comes from a product of tensors in this block, which it is or is computed from."""
        if isinstance(node, ast.Name):
            for before in range(place - 1, -1, -1):
                statement = self._block[before]
                target = _target(statement)
                if target is not None and target.id == node.id and isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value:
                    return self._leads(statement.value, before)
            return False
        if product_of(self._facts, node) is not None:
            return True
        if isinstance(node, ast.BinOp):
            return self._leads(node.left, place) or self._leads(node.right, place)
        if isinstance(node, ast.Call):
            return any(self._leads(item, place) for item in (receiver(node), *node.args) if item is not None)
        return False

    def _is_product(self, node: ast.expr, _depth: int = 0) -> bool:
        """Whether an expression is computed from a product of tensors somewhere in the function, and by something else on the way."""
        if _depth > 6:
            return False
        if product_of(self._facts, node) is not None:
            return True
        if isinstance(node, ast.Name):
            made = [binding.value for binding in self._facts.flow.reaching(node) if binding.how is Bound.ASSIGN and not binding.path]
            return any(value is not None and self._is_product(value, _depth + 1) for value in made)
        if isinstance(node, ast.BinOp):
            return self._is_product(node.left, _depth + 1) or self._is_product(node.right, _depth + 1)
        inner = receiver(node) if isinstance(node, ast.Call) else None
        given = [*([inner] if inner is not None else []), *node.args[:1]] if isinstance(node, ast.Call) else []
        return any(self._is_product(item, _depth + 1) for item in given)

    def _unscaled(self, query: ast.expr, place: int) -> tuple[ast.expr, int]:
        """The query before a statement that only scales it for this product, and where it is read; the query itself where there is none."""
        for before in range(place - 1, -1, -1) if isinstance(query, ast.Name) else ():
            assert isinstance(query, ast.Name)
            statement = self._block[before]
            if not any(isinstance(node, ast.Name) and node.id == query.id for node in walk(statement)):
                continue
            made = statement.value if isinstance(statement, ast.Assign) else None
            target = _target(statement)
            if target is None or target.id != query.id or not isinstance(made, ast.BinOp) or not isinstance(made.op, (ast.Mult, ast.Div)):
                break
            for inner, factor in ((made.left, made.right), (made.right, made.left)):
                if isinstance(inner, ast.Name) and inner.id == query.id and (inner is made.left or isinstance(made.op, ast.Mult)):
                    if not _is_used_again(self._facts, statement, query):
                        self._note(Scale(factor, isinstance(made.op, ast.Div)), before)
                        self._removed.append(statement)
                        self._passed.add(query)
                        return inner, before
            break
        return query, place

    # What else the code does with them --------------------------------------------------------------------------------

    def _used_elsewhere(self) -> Obstacle | None:
        """Whether scores or weights are read where nothing will compute them any more."""
        targets = [
            (node, statement)
            for statement in self._removed
            for node in walk(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        ]
        for target, statement in targets:
            for use in self._facts.names.uses(target):
                if isinstance(use.ctx, ast.Load) and use not in self._passed and self._is_given_by(use, statement):
                    if self._only_feeds_what_goes(use):
                        continue
                    if not is_returned_for_nothing(self._facts, use):
                        return _WEIGHTS_USED
                    self._returned.append(use)
        return None

    def _only_feeds_what_goes(self, use: ast.Name) -> bool:
        """Whether a use is the type of the scores, from which only a step that goes is computed: the fill of a mask."""
        tree = self._facts.tree
        outer = tree.parent(use)
        fills = [step.fill for step in self._steps if isinstance(step, Mask) and step.fill is not None]
        if any(tree.is_within(use, fill) for fill in fills):
            return True
        target = self._facts.flow.only_variable(tree.statement(use))
        if target is None or not isinstance(outer, ast.Attribute) or outer.attr != "dtype":
            return False
        loads = [name for name in self._facts.names.uses(target) if isinstance(name.ctx, ast.Load)]
        return all(any(tree.is_within(name, fill) for fill in fills) for name in loads)

    def _is_given_by(self, use: ast.Name, statement: ast.stmt) -> bool:
        tree = self._facts.tree
        if tree.is_within(use, statement) and not isinstance(statement, ast.If):
            return False  # it reads what was there before
        return any(tree.is_within(binding.node, statement) for binding in self._facts.flow.reaching(use))

    def _changed(self, end: int) -> Obstacle | None:
        """Whether what the result is made of may be something else where the result is computed now."""
        tree = self._facts.tree
        for piece, place in self._pieces:
            names = {node.id for node in walk(piece) if isinstance(node, ast.Name)}
            attributes = {dotted(node) for node in walk(piece) if isinstance(node, ast.Attribute)}
            for statement in self._block[place + 1 : end]:
                for node in walk(statement):
                    if any(tree.is_within(node, gone) for gone in self._removed):
                        continue
                    if _writes(node, names) or (
                        isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and dotted(node) in attributes
                    ):
                        return _OPERANDS_CHANGE
        return None


def _writes(node: ast.AST, names: set[str]) -> bool:
    """Whether a node binds one of some names anew, or writes into what it holds."""
    if isinstance(node, ast.Name):
        return isinstance(node.ctx, ast.Store) and node.id in names
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return (dotted(node.value) or "").partition(".")[0] in names
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
        return (dotted(node.func.value) or "").partition(".")[0] in names
    return False


def _is_used_again(facts: Facts, statement: ast.stmt, query: ast.Name) -> bool:
    """Whether anything but one place reads what a statement assigns."""
    return any(
        use is not query and isinstance(use.ctx, ast.Load) and any(binding.node is statement for binding in facts.flow.reaching(use))
        for use in facts.names.uses(query)
    )


def _target(statement: ast.AST) -> ast.Name | None:
    """The one name that an assignment binds."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target] if isinstance(statement, ast.AnnAssign) else []
    return targets[0] if len(targets) == 1 and isinstance(targets[0], ast.Name) else None


def _is_infinite(mask: Mask) -> bool:
    """Whether a mask takes scores away whatever they are multiplied with."""
    return mask.fill is not None and is_minus_infinity(mask.fill)


def is_minus_infinity(node: ast.expr) -> bool:
    """Whether an expression is minus infinity: ``float("-inf")``, ``-math.inf``, ``-np.inf``, ``-float("inf")``."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = node.operand
        return _is_infinity(inner, ("inf", "infinity"))
    return _is_infinity(node, ("-inf", "-infinity"))


def _is_infinity(node: ast.expr, words: tuple[str, ...]) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in ("inf", "Inf", "Infinity") and "inf" in words
    given = node.args[0] if isinstance(node, ast.Call) and last_name(node.func) == "float" and len(node.args) == 1 else None
    return isinstance(given, ast.Constant) and isinstance(given.value, str) and given.value.strip().lower() in words
