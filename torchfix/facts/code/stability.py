"""Whether an expression has the same value at two places of one function: then it need not be computed twice, and may be computed later."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.calls import receiver
from torchfix.facts.code.classes import method_of
from torchfix.facts.code.scopes import Bound, Scope
from torchfix.facts.code.tree import FUNCTIONS, LOOPS, LoopNode, dotted, last_name, walk_here
from torchfix.facts.code.values import returns
from torchfix.facts.code.writes import VIEWS
from torchfix.facts.project.effects import Effect

if TYPE_CHECKING:
    from torchfix.facts import Facts

_SHOWING = (Effect.PRINT, Effect.LOG, Effect.BAR)
# Methods and functions of torch that may hand out the memory of what they are given.
_ALIASING = frozenset(VIEWS) | frozenset(
    "data to cuda cpu float double half long int type type_as contiguous numpy unbind split chunk diagonal real imag view_as".split()
)
# Expressions that let other code run before the next one.
_HANDING_OVER = (ast.Yield, ast.YieldFrom, ast.Await)
_REDUCING = ("sum", "mean", "prod", "norm")  # methods of tensors that never hand out their memory
_DICTIONARIES = ("builtins.dict", "collections.OrderedDict", "collections.defaultdict")
_JUMPS = (ast.Continue, ast.Break, ast.Return, ast.Raise)
_LIMIT = 4  # functions followed to what they return


class Stability:
    """Questions about values that do not change, in one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def span(self, first: ast.stmt, last: ast.stmt) -> list[ast.AST] | None:
        """What may run from one statement to a later one, both included; None where the later one may run without the first.

        The later statement must stand behind the first in its block, or inside a statement that does.
        """
        tree = self._facts.tree
        _, block, index = tree.place(first)
        for end in range(index, len(block)):
            if tree.is_within(last, block[end]):
                return list(block[index : end + 1])
        return None

    def beside(self, statement: ast.stmt, other: ast.stmt) -> list[ast.AST] | None:
        """What may run between a statement and another one that runs whenever the first does, earlier or later; None where it may not.

        The other one must stand in a block around the first, or in a ``with`` statement there.
        """
        tree = self._facts.tree
        certain: ast.AST = other
        while isinstance(certain, ast.stmt):
            owner, block, index = tree.place(certain)
            near = next((place for place, item in enumerate(block) if tree.is_within(statement, item)), None)
            if near is not None:
                between = block[min(near, index) : max(near, index) + 1]
                leaves = near < index and any(isinstance(node, _JUMPS) for item in between for node in walk_here(item))
                return None if leaves else list(between)
            certain = owner if isinstance(owner, (ast.With, ast.AsyncWith)) else tree.module
        return None

    def is_alike(self, one: ast.expr, other: ast.expr) -> bool:
        """Whether two expressions have the same words, of the same variables."""
        if ast.dump(one) != ast.dump(other):
            return False
        pairs = zip(ast.walk(one), ast.walk(other))
        return all(self._facts.names.same(a, b) for a, b in pairs if isinstance(a, ast.Name) and isinstance(b, ast.Name))

    def keeps(self, expression: ast.expr, between: list[ast.AST]) -> bool:
        """Whether an expression gives the same value before and after some statements, as far as these go.

        It must only compute, from variables of its own function; none of them may be bound anew, written in place, or
        given to code that might do so, and none may share its memory with what such code can reach.
        """
        facts = self._facts
        if not facts.purity.is_pure(expression):
            return False
        if not all(self._is_of_tensor(node) for node in ast.walk(expression) if isinstance(node, (ast.Attribute, ast.Subscript))):
            return False
        names = [node for node in ast.walk(expression) if isinstance(node, ast.Name) and not self._is_module(node)]
        calm = self._is_calm(between)
        still = calm and not any(self._writes(node) for item in between for node in ast.walk(item))
        return all(self._stays(name, between, calm, still, 0) for name in names)

    def _is_calm(self, between: list[ast.AST]) -> bool:
        """Whether some statements run no code but what is known to change no tensor."""
        handing = any(isinstance(node, _HANDING_OVER) for item in between for node in ast.walk(item))
        return not handing and all(self._is_harmless(node, None) for node in _calls(between))

    def _writes(self, node: ast.AST) -> bool:
        """Whether a node may write in place into an object by a name of it: ``x += y`` of what is no number, ``x[i] = y``."""
        if isinstance(node, ast.AugAssign):
            bindings = self._facts.names.bindings(node.target) if isinstance(node.target, ast.Name) else []
            return not bindings or not all(
                binding.how is Bound.AUGMENTED or isinstance(binding.value, ast.Constant) for binding in bindings
            )
        if isinstance(node, ast.Subscript) and self._is_dictionary(node.value):
            return False
        return isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load)

    def _is_dictionary(self, expression: ast.expr) -> bool:
        """Whether an expression surely is a dictionary, which is no tensor and lets go of what an entry held."""
        made = self._facts.values.of(expression)
        return bool(made) and all(not value.path and _makes_dictionary(value.facts, value.node) for value in made or ())

    def _is_of_tensor(self, part: ast.Attribute | ast.Subscript) -> bool:
        """Whether what is taken of an object is a method that is called, a name of a module, or another view of a tensor."""
        if isinstance(part, ast.Subscript):
            return not isinstance(part.slice, ast.Constant) or not isinstance(part.slice.value, str)
        parent = self._facts.tree.parent(part)
        is_method = isinstance(parent, ast.Call) and parent.func is part
        return is_method or part.attr in ("data", "T", "shape", "dtype", "device") or self._facts.names.qualified(part) is not None

    def _is_module(self, name: ast.Name) -> bool:
        """Whether a name is a function or module that is called, rather than a value that is computed with."""
        bindings = self._facts.names.bindings(name)
        return not bindings or all(binding.how in (Bound.IMPORT, Bound.FUNCTION, Bound.CLASS) for binding in bindings)

    def _stays(self, name: ast.Name, between: list[ast.AST], calm: bool, still: bool, depth: int) -> bool:
        """Whether the tensor of a variable, and the variable, stay as they are.

        Args:
            calm: whether no unknown code runs in between.
            still: whether nothing is written in place in between at all.
        """
        facts, tree = self._facts, self._facts.tree
        home = facts.names.lookup(name.id, name)
        if home is None or facts.names.scope(name) is not home[0] or depth > _LIMIT:
            return False  # another function's variable, which that one may bind anew
        uses = list(facts.names.uses(name))
        away = [use for use in uses if self._scope(use) is not home[0]]
        if any(isinstance(home[0].node, FUNCTIONS) or not isinstance(use.ctx, ast.Load) or facts.writes.is_write(use) for use in away):
            return False
        end = max((getattr(item, "end_lineno", None) or 0) for item in between) if self._is_new(name, between) else None
        for use in uses:
            inside = any(tree.is_within(use, statement) for statement in between)
            if inside and (not isinstance(use.ctx, ast.Load) or facts.writes.is_write(use) or not self._is_harmless_use(use)):
                return False
            over = end is not None and use.lineno > end  # too late for this tensor, and the next iteration makes another
            if not (still or over) and self._may_be_one(name, use) and self._escapes(use, between, depth):
                return False
        made = [value for value in self._made_of(name) if value is not name]
        roots = [root for value in made for root in _roots(value) if not facts.names.same(root, name)]
        if not still and not all(self._stays(root, between, calm, still, depth + 1) for root in roots):
            return False  # what it shares memory with may be written
        return calm or all(self._is_fresh(value) for value in self._made_of(name))

    def _may_be_one(self, name: ast.Name, use: ast.Name) -> bool:
        """Whether two reads of a variable may give the same object."""
        flow = self._facts.flow
        found = {id(binding) for binding in flow.reaching(name)}
        return isinstance(use.ctx, ast.Load) and any(id(binding) in found for binding in flow.reaching(use))

    def _is_new(self, name: ast.Name, between: list[ast.AST]) -> bool:
        """Whether each iteration of the innermost loop binds a variable anew in front of some statements."""
        tree, first = self._facts.tree, between[0]
        loop = tree.nearest(first, LOOPS)
        if loop is None or not isinstance(first, ast.stmt):
            return False
        bound = (tree.statement(binding.node) for binding in self._facts.flow.reaching(name) if binding.how is Bound.ASSIGN)
        return any(
            tree.is_within(statement, loop) and statement is not loop and statement is not first and self.span(statement, first) is not None
            for statement in bound
        )

    def _scope(self, use: ast.Name) -> Scope | None:
        """The scope in which a use is evaluated when its statement is: displays run at once, functions and generators later."""
        scope: Scope | None = self._facts.names.scope(use)
        while scope is not None and isinstance(scope.node, (ast.ListComp, ast.SetComp, ast.DictComp)):
            scope = scope.parent
        return scope

    def _made_of(self, name: ast.Name) -> Iterator[ast.expr]:
        """What may have made a variable's value; the name itself where that is not an assignment."""
        for binding in self._facts.flow.reaching(name):
            made = binding.value if binding.how is Bound.ASSIGN else None
            part = made.elts[binding.path[0]] if isinstance(made, ast.Tuple) and len(binding.path) == 1 < len(made.elts) else made
            yield name if part is None else part

    def _is_harmless_use(self, use: ast.Name) -> bool:
        """Whether one use of a variable leaves its value alone."""
        for outer in self._facts.tree.ancestors(use):
            if isinstance(outer, ast.Call):
                if not self._is_harmless(outer, use):
                    return False
                if not self._may_hand_on(outer):
                    return True
            elif isinstance(outer, _HANDING_OVER):
                return False
            elif isinstance(outer, (ast.BinOp, ast.Compare)) or not isinstance(outer, (ast.expr, ast.keyword)):
                return True
        return True

    def _is_harmless(self, call: ast.Call, given: ast.Name | None) -> bool:
        """Whether a call changes no tensor: not the one that it is given, or none at all."""
        facts = self._facts
        if given is not None and (self._sends_backward(call) or facts.models.is_loss(call.func)):
            return True
        return facts.purity.is_pure(call) or facts.effects.own(call) in _SHOWING

    def _may_hand_on(self, call: ast.Call) -> bool:
        """Whether a call may give the memory of what it is given: not Python's own ``float(x)``, which makes a number."""
        return last_name(call.func) in _ALIASING and not (self._facts.calls.meaning(call) or "").startswith("builtins.")

    def _escapes(self, use: ast.Name, between: list[ast.AST], depth: int) -> bool:
        """Whether one use of a variable may let other names of its tensor come about, by which it is written in between."""
        facts, tree = self._facts, self._facts.tree
        node = self._seen_through(use)
        parent = tree.parent(node)
        if isinstance(parent, ast.keyword):
            parent = tree.parent(parent)
        match parent:
            case ast.Attribute():
                call = tree.parent(parent)
                return (
                    isinstance(call, ast.Call) and call.func is parent and not (parent.attr.endswith("_") or self._is_harmless(call, use))
                )
            case ast.Call():
                return node is parent.func or self._may_hand_on(parent) or not self._is_harmless(parent, use)
            case ast.Assign() | ast.Tuple():
                targets = _targets(node, parent, tree.parent(parent))
                if depth >= _LIMIT or targets is None:
                    return True
                return any(self._lets_write(other, use, between, depth) for target in targets for other in facts.names.uses(target))
            case ast.BinOp() | ast.Compare() | ast.UnaryOp() | ast.FormattedValue() | ast.Subscript() | ast.AugAssign():
                return False
            case ast.Expr() | ast.If() | ast.While() | ast.Assert() | ast.Return() | ast.Delete():
                return False
        return True

    def _lets_write(self, other: ast.Name, use: ast.Name, between: list[ast.AST], depth: int) -> bool:
        """Whether a use of another variable that shares the tensor's memory writes into it, or lets it be written."""
        if self._facts.names.same(other, use):
            return False
        if self._facts.writes.is_write(other) and any(self._facts.tree.is_within(other, item) for item in between):
            return True
        return isinstance(other.ctx, ast.Load) and self._escapes(other, between, depth + 1)

    def _seen_through(self, use: ast.Name) -> ast.expr:
        """The outermost expression around a use that may share its memory: ``x.detach().view(-1)``."""
        tree = self._facts.tree
        node: ast.expr = use
        parent = tree.parent(node)
        while isinstance(parent, (ast.Attribute, ast.Subscript)) and parent.value is node:
            if isinstance(parent, ast.Attribute) and parent.attr not in _ALIASING:
                break
            call = tree.parent(parent)
            node = call if isinstance(call, ast.Call) and call.func is parent else parent
            parent = tree.parent(node)
        return node

    def has_own_memory(self, tensor: ast.expr, loop: LoopNode) -> bool:
        """Whether a tensor that an iteration of a loop makes has memory that nothing writes any more, by whatever name."""
        if not self._is_fresh(tensor):
            return False
        uses = list(self._facts.names.uses(tensor)) if isinstance(tensor, ast.Name) else []
        read = (use for use in uses if isinstance(use.ctx, ast.Load))
        written = any(self._facts.writes.is_write(use) for use in uses)
        return not written and not any(self._escapes(use, [loop], 0) for use in read)

    def _is_fresh(self, value: ast.expr, depth: int = 0) -> bool:
        """Whether an expression makes a tensor with memory of its own, which nothing else holds."""
        facts = self._facts
        match value:
            case ast.Name():
                if any(self._goes_backward(use) for use in facts.names.uses(value)) or facts.batches.on_host(value) is not None:
                    return True
                made = [item for item in self._made_of(value) if item is not value]
                return bool(made) and depth < _LIMIT and all(self._is_fresh(item, depth + 1) for item in made)
            case ast.BinOp() | ast.Compare() | ast.Constant():
                return True
            case ast.IfExp():
                return self._is_fresh(value.body, depth) and self._is_fresh(value.orelse, depth)
            case ast.Tuple():
                return all(self._is_fresh(part, depth) for part in value.elts)
            case ast.Call():
                return self._makes_fresh(value, depth)
        return False

    def _makes_fresh(self, call: ast.Call, depth: int) -> bool:
        facts, source = self._facts, receiver(call)
        if last_name(call.func) in _ALIASING:
            return source is not None and self._is_fresh(source, depth)
        functions = list(called(facts, call))
        networks = facts.models.of(call.func) or ()
        own = (method_of(network.definition, "forward") for network in networks if network.definition is not None)
        functions += [(method.facts, method.node) for method in own if method is not None and isinstance(method.node, FUNCTIONS)]
        if functions:
            given = [(there, item) for there, function in functions for item in returns(function)]
            return bool(given) and depth < _LIMIT and all(there.stability._is_fresh(item, depth + 1) for there, item in given)
        if networks:
            return all((network.library or "").startswith("torch.nn.") for network in networks)
        meaning = facts.calls.meaning(call) or ""
        computed = meaning.startswith(("torch.nn.functional.", "builtins.")) or meaning.rpartition(".")[0] == "torch"
        return computed or (not meaning and (last_name(call.func) in _REDUCING or facts.purity.is_pure(call)))

    def _goes_backward(self, use: ast.Name) -> bool:
        """Whether a variable is sent backward, by itself or scaled: no parameter is."""
        parent = self._facts.tree.parent(use)
        if isinstance(parent, ast.Call):
            return use in parent.args and self._sends_backward(parent)
        return isinstance(parent, ast.Attribute) and parent.attr == "backward"

    def _sends_backward(self, call: ast.Call) -> bool:
        """Whether a call is ``loss.backward()``, an object's ``backward(loss)``, or the ``scale(loss)`` of a gradient scaler."""
        name, source = last_name(call.func), receiver(call)
        if source is None or name not in ("backward", "scale") or next(called(self._facts, call), None) is not None:
            return False
        scaler = dotted(source)
        steps = [other for other in self._facts.tree.calls.get("step", ()) if isinstance(other.func, ast.Attribute) and other.args]
        return name == "backward" or any(dotted(other.func.value) == scaler for other in steps if isinstance(other.func, ast.Attribute))


def _makes_dictionary(facts: Facts, node: ast.AST) -> bool:
    return isinstance(node, ast.Dict) or (isinstance(node, ast.Call) and facts.calls.meaning(node) in _DICTIONARIES)


def _targets(value: ast.expr, parent: ast.Assign | ast.Tuple, around: ast.AST | None) -> list[ast.Name] | None:
    """The variables that a value is assigned to, alone or in ``a, b = x, y``; None where it goes elsewhere."""
    targets: list[ast.expr] = []
    if isinstance(parent, ast.Assign):
        targets = parent.targets
    elif isinstance(around, ast.Assign) and around.value is parent:
        displays = [target for target in around.targets if isinstance(target, ast.Tuple) and len(target.elts) == len(parent.elts)]
        targets = [target.elts[parent.elts.index(value)] for target in displays] if len(displays) == len(around.targets) else []
    names = [target for target in targets if isinstance(target, ast.Name)]
    return names if names and len(names) == len(targets) else None


def _roots(value: ast.expr) -> Iterator[ast.Name]:
    """The variables whose tensors' memory an expression may share."""
    match value:
        case ast.Name():
            yield value
        case ast.Attribute() | ast.Subscript():
            yield from _roots(value.value)
        case ast.Call(func=ast.Attribute(attr=method, value=source)) if method in _ALIASING:
            yield from _roots(source)
        case ast.IfExp():
            yield from (*_roots(value.body), *_roots(value.orelse))
        case ast.Tuple() | ast.List() | ast.BoolOp():
            for item in value.values if isinstance(value, ast.BoolOp) else value.elts:
                yield from _roots(item)


def _calls(nodes: list[ast.AST]) -> Iterator[ast.Call]:
    for node in nodes:
        for item in ast.walk(node):
            if isinstance(item, ast.Call):
                yield item
