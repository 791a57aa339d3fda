"""What torch's own attention is given in the place of attention by hand, as code: operands, mask, dropout and scale."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import argument, is_constant, receiver
from torchfix.facts.code.numbers import Number
from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import last_name
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.tensors.attention import Attention, Mask, Masking, Scale, is_minus_infinity
from torchfix.facts.tensors.attention_masks import is_causal, keeps_a_key, kept
from torchfix.facts.tensors.products import reordered

if TYPE_CHECKING:
    from torchfix.facts import Facts

_KNOWS_SCALE = (2, 1)  # the first torch whose attention takes a scale
_KNOWS_EMPTY_ROWS = (2, 5)  # the first torch that gives zeros for a query without keys
_FAR = 1e4  # how far below the other scores one surely has no weight
_ROOTS = ("math.sqrt", "numpy.sqrt")
_SIMPLE = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.Constant)

_NO_SCALE = Obstacle(
    "scale-not-sure", "the scale is not surely that of torch 2.0's attention, one over the root of the features", "require torch 2.1"
)
_LEARNED = Obstacle("scale-is-a-tensor", "the scores are scaled by a tensor, where torch's attention takes a number", "scale the queries")
_LAYOUT = Obstacle("einsum-layout", "the einsum lays out its dimensions in a way that torch's attention does not know", "leave it as it is")
_SEVERAL = Obstacle("several-masks", "several masks are applied, some of them under a condition", "join them into one first")
_ROWS = Obstacle(
    "masked-rows", "a query whose keys are all masked would give NaN before torch 2.5, where it gave a number", "require torch 2.5"
)
_COUNTED = Obstacle(
    "mask-not-a-fraction", "what is added to the scores is no tensor of fractions, which torch's attention takes", "add such a tensor"
)
_SHALLOW = Obstacle(
    "shallow-mask", "the scores are filled with a number that may leave masked keys some weight", 'fill them with float("-inf")'
)
_EMPTY_ROWS = "A query whose keys are all masked gives zeros (NaN before torch 2.5), where it gave NaN."
_MEAN_ROWS = "A query whose keys are all masked gives zeros, where it gave the mean of all values: see whether there are such queries."
_BUFFER = "The causal mask that the class keeps is not read here any more; it stays, since saved weights may hold it."
_SMALL = "torch's fast kernels take tensors of four dimensions; with three, as here, little may be gained."


@dataclass(frozen=True)
class Arguments:
    """The arguments, as code, and what the user must know of them."""

    text: str
    notes: tuple[str, ...]


def arguments(facts: Facts, attention: Attention) -> Arguments | Obstacle:
    """What torch's attention is given in the place of this one, or why it cannot be."""
    operands = _operands(facts, attention)
    scale = _scale(facts, attention)
    masks = _masks(facts, attention)
    for found in (operands, scale, masks):
        if isinstance(found, Obstacle):
            return found
    assert isinstance(operands, tuple) and isinstance(scale, str) and isinstance(masks, Arguments)
    *inputs, behind = operands
    indexes = attention.scores.indexes
    dimensions = len(indexes[2]) if indexes is not None else attention.scores.dimensions
    notes = [*masks.notes, *([_SMALL] if dimensions == 3 else [])]
    given = [*inputs, masks.text, _dropout(facts, attention), scale]
    return Arguments(", ".join(item for item in given if item) + ")" + behind, tuple(notes))


def _operands(facts: Facts, attention: Attention) -> tuple[str, str, str, str] | Obstacle:
    """Query, key and value, and what follows the call."""
    texts = [_text(facts, item) for item in (attention.query, attention.key, attention.value)]
    for scale in attention.scales:
        if _is_tensor(facts, scale.factor):  # a number is asked for, so the queries take it along
            sign, factor = "/" if scale.divides else "*", _primary(scale.factor, _text(facts, scale.factor))
            texts[0] = f"{_primary(attention.query, texts[0])} {sign} {factor}"
    scores, output = attention.scores.indexes, attention.output.indexes
    behind = ".contiguous()" if _is_viewed(facts, attention.output.node) else ""
    if scores is None and output is None:
        return texts[0], texts[1], texts[2], behind
    if scores is None:
        return _LAYOUT
    query, key, made = scores
    if len(made) < 3:
        return _LAYOUT
    batch, length, width = made[:-2], made[-2], made[-1]
    summed = [letter for letter in query if letter in key and letter not in made]
    wanted = [f"{batch}{length}{''.join(summed)}", f"{batch}{width}{''.join(summed)}"]
    moves = [reordered(letters, order) for letters, order in zip((query, key), wanted)]
    if output is not None:
        weights, value, result = output
        same = dict(zip(weights, made))  # a second einsum may use other letters
        features = [letter for letter in value if letter not in weights]
        if len(weights) != len(made) or len(features) != 1:
            return _LAYOUT
        batch, length, width = weights[:-2], weights[-2], weights[-1]
        moves.append(reordered(value, f"{batch}{width}{features[0]}"))
        last = reordered(f"{batch}{length}{features[0]}", result)
        assert len(same) == len(made)
    else:
        moves.append("")
        last = ""
    if len(summed) != 1 or last is None or any(move is None for move in moves):
        return _LAYOUT
    q, k, v = (
        f"{_primary(item, text) if move else text}{move}"
        for item, text, move in zip((attention.query, attention.key, attention.value), texts, moves)
    )
    return q, k, v, last or behind


def _is_viewed(facts: Facts, output: ast.expr) -> bool:
    """Whether the result is viewed as another shape at once, which needs the memory layout that a product has."""
    parent = facts.tree.parent(output)
    if isinstance(parent, ast.Attribute):
        return parent.attr == "view"
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(target := parent.targets[0], ast.Name):
        uses = (use for use in facts.names.uses(target) if any(b.node is parent for b in facts.flow.reaching(use)))
        return any(isinstance(outer := facts.tree.parent(use), ast.Attribute) and outer.attr == "view" for use in uses)
    return False


# Scale --------------------------------------------------------------------------------------------------------------------


def _scale(facts: Facts, attention: Attention) -> str | Obstacle:
    """The argument ``scale=``, empty where it is torch's own."""
    scales = tuple(scale for scale in attention.scales if not _is_tensor(facts, scale.factor))
    if any(scale.guard is not None or not _is_of_one_number(facts, scale.factor) for scale in attention.scales if scale not in scales):
        return _LEARNED
    if scales == attention.scales and len(scales) == 1 and scales[0].guard is None and _is_own(facts, scales[0], attention):
        return ""
    if facts.project.torch is not None and facts.project.torch < _KNOWS_SCALE:
        return _NO_SCALE
    return f"scale={' * '.join(_factor(facts, scale, len(scales) > 1) for scale in scales) or '1.0'}"


def _factor(facts: Facts, scale: Scale, is_joined: bool) -> str:
    factor = scale.factor
    text = f"1 / {_primary(factor, _text(facts, factor))}" if scale.divides else _text(facts, factor)
    if scale.guard is not None:
        text = f"{text} if {_text(facts, scale.guard)} else 1.0"
    return f"({text})" if is_joined and (scale.guard is not None or scale.divides or not isinstance(factor, _SIMPLE)) else text


def _is_tensor(facts: Facts, factor: ast.expr) -> bool:
    """Whether a scale may be a tensor, by what is seen of it."""
    if isinstance(factor, ast.BinOp):
        return _is_tensor(facts, factor.left) or _is_tensor(facts, factor.right)
    if isinstance(factor, (ast.Name, ast.Attribute)):
        values = facts.values.of(factor) or ()
        return any(isinstance(value.node, (ast.Call, ast.BinOp)) and _is_tensor(value.facts, value.node) for value in values)
    if isinstance(factor, ast.Call):
        meaning = facts.calls.meaning(factor) or ""
        owner = receiver(factor)
        if meaning.startswith("torch."):
            return True
        return (
            not meaning and owner is not None and last_name(factor.func) not in ("size", "dim", "item", "get") and _is_tensor(facts, owner)
        )
    return False


def _is_of_one_number(facts: Facts, factor: ast.expr) -> bool:
    """Whether a tensor surely holds one number and has no more than one dimension, however it is computed and moved."""
    if isinstance(factor, (ast.Name, ast.Attribute)):
        values = facts.values.of(factor)
        return bool(values) and all(
            isinstance(value.node, ast.expr) and value.node is not factor and _is_of_one_number(value.facts, value.node)
            for value in values or ()
        )
    if not isinstance(factor, ast.Call) or not factor.args:
        owner = receiver(factor) if isinstance(factor, ast.Call) else None
        return owner is not None and _is_of_one_number(facts, owner)
    meaning, given = facts.calls.meaning(factor) or "", factor.args[0]
    if meaning in ("torch.FloatTensor", "torch.Tensor", "torch.tensor"):
        listed = isinstance(given, (ast.List, ast.Tuple))
        return (
            len(given.elts) == 1
            if isinstance(given, (ast.List, ast.Tuple))
            else meaning == "torch.tensor" and not listed and facts.numbers.is_plain(given)
        )
    if meaning in ("torch.sqrt", "torch.nn.Parameter", "torch.exp", "torch.autograd.Variable"):
        return _is_of_one_number(facts, given)
    if meaning in ("torch.ones", "torch.full"):
        return len(factor.args) == 1 and is_constant(given, 1)
    owner = receiver(factor)
    return not meaning and last_name(factor.func) in ("to", "cuda", "type") and owner is not None and _is_of_one_number(facts, owner)


def _is_own(facts: Facts, scale: Scale, attention: Attention) -> bool:
    """Whether a scale surely is one over the root of the number of features."""
    factor, divides = scale.factor, scale.divides
    if isinstance(factor, ast.BinOp) and isinstance(factor.op, ast.Div) and not divides:
        if not (is_constant(factor.left, 1) or is_constant(factor.left, 1.0)):
            return False
        factor, divides = factor.right, True
    if isinstance(factor, ast.Call) and facts.calls.meaning(factor) in _ROOTS and divides and len(factor.args) == 1:
        return _is_width(facts, factor.args[0], attention)
    if isinstance(factor, ast.BinOp) and isinstance(factor.op, ast.Pow):
        power = ast.unparse(factor.right)
        return power == ("0.5" if divides else "-0.5") and _is_width(facts, factor.left, attention)
    return False


def _is_width(facts: Facts, node: ast.expr, attention: Attention) -> bool:
    """Whether an expression is the size of the last dimension of queries or keys."""
    if isinstance(node, ast.Call) and last_name(node.func) == "float" and len(node.args) == 1:
        node = node.args[0]
    if isinstance(node, ast.Name):
        bindings = facts.flow.reaching(node)
        one = bindings[0] if len(bindings) == 1 else None
        if one is None or one.how is not Bound.ASSIGN or one.value is None:
            return False
        if not one.path:
            return _is_width(facts, one.value, attention)
        targets = one.node.targets[0] if isinstance(one.node, ast.Assign) else None
        is_last = isinstance(targets, ast.Tuple) and one.path == (len(targets.elts) - 1,)
        return is_last and _is_sizes_of_operand(facts, one.value, attention)
    if isinstance(node, ast.Subscript) and ast.unparse(node.slice) == "-1":
        return _is_sizes_of_operand(facts, node.value, attention)
    if isinstance(node, ast.Call) and last_name(node.func) == "size" and len(node.args) == 1:
        owner = receiver(node)
        return ast.unparse(node.args[0]) == "-1" and owner is not None and _is_operand(facts, owner, attention)
    return False


def _is_sizes_of_operand(facts: Facts, node: ast.expr, attention: Attention) -> bool:
    owner = node.value if isinstance(node, ast.Attribute) and node.attr == "shape" else None
    if isinstance(node, ast.Call) and last_name(node.func) == "size" and not node.args:
        owner = receiver(node)
    return owner is not None and _is_operand(facts, owner, attention)


def _is_operand(facts: Facts, node: ast.expr, attention: Attention) -> bool:
    """Whether an expression is the query or the key, of matrix products, with the value that it has there."""
    if attention.scores.indexes is not None or not isinstance(node, ast.Name):
        return False
    reaching = {id(binding) for binding in facts.flow.reaching(node)}
    return any(
        isinstance(item, ast.Name) and item.id == node.id and {id(binding) for binding in facts.flow.reaching(item)} == reaching
        for item in (attention.query, attention.key)
    )


# Masks --------------------------------------------------------------------------------------------------------------------


def _masks(facts: Facts, attention: Attention) -> Arguments | Obstacle:
    """The argument ``attn_mask=`` or ``is_causal=``."""
    masks = attention.masks
    added = [mask.operand for mask in masks if mask.fill is None]
    if any(facts.numbers.of(item) in (Number.TRUTH, Number.WHOLE) or facts.numbers.is_plain(item) for item in added):
        return _COUNTED
    if not masks:
        return Arguments("", ())
    if len(masks) == 1:
        return _mask(facts, attention, masks[0])
    if any(mask.guard is not None for mask in masks):
        return _SEVERAL
    if all(mask.how in (Masking.ADD, Masking.SUBTRACT) for mask in masks):
        first, *others = masks
        text = _added(facts, first)
        for mask in others:
            sign = "+" if mask.how is Masking.ADD else "-"
            text += f" {sign} {_primary(mask.operand, _text(facts, mask.operand))}"
        return Arguments(f"attn_mask={text}", ())
    if any(mask.fill is None for mask in masks):
        return _SEVERAL
    told = [_of_empty_rows(facts, mask) for mask in masks]
    for obstacle in told:
        if isinstance(obstacle, Obstacle):
            return obstacle
    notes = dict.fromkeys(note for notes in told if not isinstance(notes, Obstacle) for note in notes)
    return Arguments(f"attn_mask={' & '.join(f'({_kept(facts, mask)})' for mask in masks)}", tuple(notes))


def _mask(facts: Facts, attention: Attention, mask: Mask) -> Arguments | Obstacle:
    if mask.fill is None:
        return Arguments(f"attn_mask={_guarded(facts, mask, _added(facts, mask))}", ())
    if mask.how is Masking.FILL and mask.guard is None and is_causal(facts, mask.operand, attention.query, attention.key):
        return Arguments("is_causal=True", (_BUFFER,))
    told = _of_empty_rows(facts, mask)
    return told if isinstance(told, Obstacle) else Arguments(f"attn_mask={_guarded(facts, mask, _kept(facts, mask))}", told)


def _of_empty_rows(facts: Facts, mask: Mask) -> tuple[str, ...] | Obstacle:
    """What the user must know of queries that a filling mask leaves no key, or why they cannot be told it."""
    if _leaves_a_key(facts, mask):
        return ()
    assert mask.fill is not None
    if is_minus_infinity(mask.fill):
        return (_EMPTY_ROWS,)
    if not _is_far_below(facts, mask.fill):
        return _SHALLOW
    return _ROWS if facts.project.torch is not None and facts.project.torch < _KNOWS_EMPTY_ROWS else (_MEAN_ROWS,)


def _leaves_a_key(facts: Facts, mask: Mask) -> bool:
    return mask.how is Masking.FILL and keeps_a_key(facts, mask.operand)


def _kept(facts: Facts, mask: Mask) -> str:
    return _text(facts, mask.operand) if mask.how is Masking.KEEP else kept(facts, mask.operand)


def _added(facts: Facts, mask: Mask) -> str:
    text = _text(facts, mask.operand)
    return text if mask.how is Masking.ADD else f"-{_primary(mask.operand, text)}"


def _guarded(facts: Facts, mask: Mask, text: str) -> str:
    """A mask under its condition, None without it."""
    guard = mask.guard
    if guard is None:
        return text
    if isinstance(guard, ast.Compare) and isinstance(guard.ops[0], ast.IsNot) and is_constant(guard.comparators[0], None):
        return f"None if {_text(facts, guard.left)} is None else {text}"
    return f"{text} if {_text(facts, guard)} else None"


def _is_far_below(facts: Facts, fill: ast.expr) -> bool:
    """Whether a fill is so far below every score that its weight is nothing: a big number, or the smallest that the type has."""
    if isinstance(fill, ast.Name):
        bindings = facts.flow.reaching(fill)
        value = bindings[0].value if len(bindings) == 1 and bindings[0].how is Bound.ASSIGN and not bindings[0].path else None
        return value is not None and not isinstance(value, ast.Name) and _is_far_below(facts, value)
    negative = isinstance(fill, ast.UnaryOp) and isinstance(fill.op, ast.USub)
    inner = fill.operand if isinstance(fill, ast.UnaryOp) else fill
    if isinstance(inner, ast.Call) and last_name(inner.func) == "float" and len(inner.args) == 1 and not negative:
        text = inner.args[0].value if isinstance(inner.args[0], ast.Constant) else None
        return isinstance(text, str) and _is_far_number(text)
    if isinstance(inner, ast.Constant):
        return negative and isinstance(inner.value, (int, float)) and inner.value >= _FAR
    least = isinstance(inner, ast.Attribute) and inner.attr == ("max" if negative else "min")
    limits = inner.value if isinstance(inner, ast.Attribute) and least else None
    return isinstance(limits, ast.Call) and facts.calls.meaning(limits) == "torch.finfo"


def _is_far_number(text: str) -> bool:
    try:
        return float(text) <= -_FAR
    except ValueError:
        return False


# Dropout ------------------------------------------------------------------------------------------------------------------


def _dropout(facts: Facts, attention: Attention) -> str:
    """The argument ``dropout_p=``: the chance where dropout would draw, else nothing."""
    dropout = attention.dropout
    if dropout is None:
        return ""
    call = dropout.call
    if dropout.is_function:
        chance, training = argument(call, "p", 1), argument(call, "training", 2)
        text = _text(facts, chance) if chance is not None else "0.5"
        conditions = [] if training is None or is_constant(training, True) else [_text(facts, training)]
    else:
        module = _text(facts, call.func)
        text, conditions = f"{module}.p", [f"{module}.training"]
    if dropout.guard is not None:
        conditions.insert(0, _text(facts, dropout.guard))
    return f"dropout_p={text} if {' and '.join(conditions)} else 0.0" if conditions else f"dropout_p={text}"


def _text(facts: Facts, node: ast.expr) -> str:
    """An expression's own text, on one line."""
    text = facts.source.segment(node)
    return ast.unparse(node) if "\n" in text else text


def _primary(node: ast.expr, text: str) -> str:
    return text if isinstance(node, _SIMPLE) else f"({text})"
