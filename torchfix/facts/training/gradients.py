"""Where a value goes, and whether a gradient may flow back to it from there.

A value is followed through everything that autograd follows: arithmetic, torch's functions, networks, variables,
containers, attributes, and the functions of the project that it is given to or returned from. What makes a number or
an index of it ends its way. Too much is followed rather than too little; a value that leaves the code in sight is unseen.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from torchfix.facts.code.callees import called, classes_of
from torchfix.facts.code.calls import argument, keyword, receiver
from torchfix.facts.code.classes import lineage, method_of
from torchfix.facts.code.names import Definition
from torchfix.facts.code.scopes import Binding, Bound, parameters
from torchfix.facts.code.tree import COMPREHENSIONS, FUNCTIONS, LOOPS, Function, last_name
from torchfix.facts.code.values import passed
from torchfix.facts.project.effects import REPORTS, Effect

if TYPE_CHECKING:
    from torchfix.facts import Facts


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ANY = "*"
Path: TypeAlias = "tuple[object, ...]"

GRAPHLESS_METHODS = _words(
    """item detach tolist numpy argmax argmin argsort eq ne gt lt ge le equal allclose size dim ndimension numel nelement nonzero any all
    long int short bool byte isnan isinf isfinite data_ptr element_size stride is_contiguous get_device sign round floor ceil
    count_nonzero bincount histc new_zeros new_ones new_full new_empty new_tensor"""
)
"""Methods of a tensor whose result has no graph, or one through which no gradient but zero flows."""
GRAPHLESS_ATTRIBUTES = _words("data shape dtype device ndim is_cuda layout itemsize nbytes grad")
"""Attributes of a tensor that have no graph."""
GRAPHLESS_FUNCTIONS = _words(
    """argmax argmin argsort eq ne gt lt ge le equal allclose is_tensor numel nonzero any all isnan isinf isfinite sign round floor ceil
    bincount histc count_nonzero zeros_like ones_like rand_like randn_like full_like empty_like unique bucketize save is_floating_point"""
)
"""Functions of torch whose result has no graph, or one through which no gradient but zero flows."""
NO_GRAPHS = tuple(
    f"{name}."
    for name in """numpy math sklearn scipy pandas matplotlib seaborn cv2 PIL time datetime os json logging csv pickle skimage imageio
    wandb torchvision.utils torch.distributed torch.utils.tensorboard tensorboardX statistics pprint random sys warnings gc gym
    gymnasium copyreg collections.Counter argparse""".split()
)
"""Packages that know nothing of autograd, or only report."""
_CHOOSING = _words("max min median mode kthvalue cummax cummin nanmedian")
_ORDERING = _words("topk sort")
GRADIENT_CALLS = ("torch.autograd.", "torch.func.", "functorch.")
SENDING = _words("backward manual_backward")
_ASKING = _words("grad_fn requires_grad is_leaf retains_grad requires_grad_ retain_grad register_hook detach_")
KEEPING = _words("append extend insert add appendleft update setdefault put push put_nowait")
"""Methods by which a container keeps what it is given."""
_OF_CONTAINERS = KEEPING | _words("clear sort reverse remove discard count index keys")
_NUMBERS = _words(
    """builtins.print builtins.float builtins.int builtins.bool builtins.str builtins.repr builtins.format builtins.len builtins.id
    builtins.isinstance builtins.type builtins.hasattr builtins.range builtins.hash builtins.complex"""
)
_REPORTING = _words("set_postfix set_postfix_str set_description set_description_str")
_SUMS = _words("torch.sum torch.mean torch.stack torch.add torch.mul torch.div torch.cat builtins.sum builtins.list builtins.tuple")
_SUMMING_METHODS = _words("sum mean add mul div sub view squeeze unsqueeze reshape to float double half cuda cpu scale clone contiguous")
# Methods, of tensors alone (and of a GradScaler), that make a tensor of their arguments too.
_COMBINING = _words(
    """scale dot matmul mm bmm mv outer addmm baddbmm cross maximum minimum lerp masked_fill index_select gather scatter_add index_add
    mul sub div type_as expand_as view_as reshape_as copy_ add_ mul_ sub_ div_ addcmul addcdiv where"""
)
_MOST_STEPS = 4000  # steps after which a value counts as unseen
_DEEPEST = 6  # calls entered one inside the other


class End(enum.IntEnum):
    """How the way of a value ends; the worst is the highest."""

    NOWHERE = 0
    UNSEEN = 1
    BACKWARD = 2


@dataclass(frozen=True)
class Fate:
    """What becomes of a value.

    Args:
        end: whether a gradient may flow back to it.
        facts: the file in which that is decided.
        node: the place at which it is sent backward, or leaves the code in sight.
        kept: whether it is put into something that lives on: an attribute, a container, a sum.
    """

    end: End
    facts: Facts
    node: ast.AST
    kept: bool = False

    @property
    def place(self) -> str:
        """Where that is decided: ``train.py:12``."""
        return f"{self.facts.path}:{getattr(self.node, 'lineno', 1)}"


@dataclass(frozen=True)
class Entered:
    """A function in which a value is, and the call by which it came there."""

    function: Function
    facts: Facts
    call: ast.Call


Stack: TypeAlias = "tuple[Entered, ...]"


class Gradients:
    """Questions about where the values of one file go."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._asked: dict[tuple[int, object], Fate] = {}

    def of_value(self, expression: ast.expr, beside: ast.AST | None = None, through: Stack = ()) -> Fate:
        """What becomes of the value of an expression where it stands.

        Args:
            expression: where it begins.
            beside: a statement of the same file inside which no end counts.
            through: the calls by which the function came to run in which it stands, the innermost last; what the
                function returns goes there alone. Any call of it where there are none.
        """
        role = ("value", id(beside), *(id(item.call) for item in through))
        return self._follow(expression, role, lambda way: way.go(self._facts, expression, (), through), beside)

    def of_variable(self, target: ast.expr) -> Fate:
        """What becomes of what a statement stores in a target: a variable, an attribute, an entry."""
        return self._follow(target, "variable", lambda way: way.bind(self._facts, target))

    def of_container(self, container: ast.expr) -> Fate:
        """What becomes of what is put into a container."""
        return self._follow(container, "container", lambda way: way.hold(self._facts, container, (ANY,)))

    def of_parameters(self, function: Function | ast.Lambda) -> Fate:
        """What becomes of what is given to a function that code out of sight calls, as torch does with hooks."""
        return self._follow(function, "parameters", lambda way: way.receive(self._facts, function))

    def is_term(self, expression: ast.expr) -> bool:
        """Whether a value is a loss or a term of one: sent backward, alone or through sums and means alone.

        What else is done with the variables of the expression counts, not the place at which it stands.
        """
        names = [node for node in ast.walk(expression) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
        return any(self._is_term(name) for name in names)

    def _is_term(self, name: ast.Name) -> bool:
        way = _Way(sums_only=True)
        for binding in self._facts.flow.reaching(name):
            if binding.how in (Bound.ASSIGN, Bound.AUGMENTED):
                way.go_to_uses(self._facts, name, binding)
        return way.end() is End.BACKWARD

    def _follow(self, node: ast.expr | Function, role: object, start: Callable[[_Way], None], beside: ast.AST | None = None) -> Fate:
        key = (id(node), role)
        if key not in self._asked:
            way = _Way(beside=beside)
            start(way)
            end = way.end()
            facts, place = way.place or (self._facts, node)
            self._asked[key] = Fate(end, facts, place, way.kept)
        return self._asked[key]


class _Way:
    """The ways of one value, walked until all have ended or one leads backward.

    A value inside another one is known by its path: the indexes and keys by which it would be read, :data:`ANY` for
    one of them; the empty path is all of it.
    """

    def __init__(self, sums_only: bool = False, beside: ast.AST | None = None) -> None:
        self.kept = False
        self.place: tuple[Facts, ast.AST] | None = None
        self._sums_only = sums_only
        self._beside = beside
        self._worst = End.NOWHERE
        self._seen: set[object] = set()
        self._waiting: list[tuple[Facts, ast.expr, Path, Stack]] = []

    def end(self) -> End:
        """How the ways end."""
        steps = 0
        while self._waiting and self._worst is not End.BACKWARD:
            facts, node, path, stack = self._waiting.pop()
            steps += 1
            if steps > _MOST_STEPS:
                self._meets(End.UNSEEN, facts, node)
                break
            self._step(facts, node, path, stack)
        return self._worst

    def go(self, facts: Facts, node: ast.expr, path: Path = (), stack: Stack = ()) -> None:
        """Follow the value of an expression from where it stands."""
        key = (id(node), path, tuple(id(item.call) for item in stack))
        if key not in self._seen and len(path) < 5:
            self._seen.add(key)
            self._waiting.append((facts, node, path, stack))

    def _meets(self, end: End, facts: Facts, node: ast.AST) -> None:
        if end > self._worst and not (self._beside is not None and facts.tree.is_within(node, self._beside)):
            self._worst, self.place = end, (facts, node)

    # Where a value stands -------------------------------------------------------------------------------------

    def _step(self, facts: Facts, node: ast.expr, path: Path, stack: Stack) -> None:
        parent = facts.tree.parent(node)
        if isinstance(parent, ast.keyword):
            call = facts.tree.parent(parent)
            if isinstance(call, ast.Call):
                self._given(facts, node, call, path, stack)
        elif isinstance(parent, ast.Call):
            if parent.func is node:
                self.go(facts, parent, (), stack)
            else:
                self._given(facts, node, parent, path, stack)
        elif isinstance(parent, ast.Attribute):
            self._attribute(facts, parent, path, stack)
        elif isinstance(parent, ast.Subscript):
            self._entry(facts, node, parent, path, stack)
        elif isinstance(parent, (ast.Tuple, ast.List)):
            self.go(facts, parent, (parent.elts.index(node), *path), stack)
        elif isinstance(parent, ast.Dict):
            key = parent.keys[parent.values.index(node)] if node in parent.values else node
            inner = path if key is None else (key.value if isinstance(key, ast.Constant) else ANY, *path)
            self.go(facts, parent, inner, stack)
        elif isinstance(parent, ast.NamedExpr):
            self.bind(facts, parent.target, path, stack)
            self.go(facts, parent, path, stack)
        elif isinstance(parent, (ast.IfExp, ast.BoolOp, ast.Await, ast.Starred, ast.BinOp, ast.UnaryOp, ast.Set)):
            whole = isinstance(parent, (ast.IfExp, ast.BoolOp, ast.Await))
            if not (isinstance(parent, ast.IfExp) and parent.test is node):
                self.go(facts, parent, path if whole else (), stack)
        elif isinstance(parent, ast.comprehension):
            if parent.iter is node:
                self.bind(facts, parent.target, path[1:], stack)
        elif isinstance(parent, COMPREHENSIONS):
            self.go(facts, parent, (ANY, *path), stack)
        else:
            self._in_statement(facts, node, parent, path, stack)

    def _in_statement(self, facts: Facts, node: ast.expr, parent: ast.AST | None, path: Path, stack: Stack) -> None:
        if isinstance(parent, ast.Assign):
            for target in parent.targets:
                self.bind(facts, target, path, stack)
        elif isinstance(parent, (ast.AnnAssign, ast.AugAssign)):
            self.bind(facts, parent.target, path, stack)
        elif isinstance(parent, (ast.For, ast.AsyncFor)):
            self.bind(facts, parent.target, path[1:], stack)
        elif isinstance(parent, ast.withitem):
            if parent.optional_vars is not None:
                self.bind(facts, parent.optional_vars, path, stack)
        elif isinstance(parent, (ast.Return, ast.Yield, ast.YieldFrom)):
            self._returned(facts, parent, (ANY, *path) if isinstance(parent, ast.Yield) else path, stack)
        elif isinstance(parent, (ast.Lambda, ast.Match, ast.match_case)):
            self._meets(End.UNSEEN, facts, node)

    def _attribute(self, facts: Facts, node: ast.Attribute, path: Path, stack: Stack) -> None:
        """An attribute or a method of a value."""
        call = facts.tree.parent(node)
        if not isinstance(node.ctx, ast.Load) or node.attr in GRAPHLESS_ATTRIBUTES:
            return
        if node.attr in _ASKING:
            self._meets(End.BACKWARD, facts, node)  # it matters here whether there is a graph
        elif not (isinstance(call, ast.Call) and call.func is node):
            self.go(facts, node, (), stack)
        elif node.attr in SENDING:
            self._meets(End.BACKWARD, facts, call)
        elif node.attr == "values" or node.attr == "get":
            self.go(facts, call, (ANY, *path[1:]) if node.attr == "values" and path else path[1:], stack)
        elif node.attr == "items":
            self.go(facts, call, (ANY, 1, *path[1:]), stack)
        elif not (node.attr in GRAPHLESS_METHODS or (path and node.attr in _OF_CONTAINERS)):
            if not self._sums_only or node.attr in _SUMMING_METHODS:
                self.go(facts, call, (0,) if gives_indices(call, 0) else (), stack)

    def _entry(self, facts: Facts, node: ast.expr, parent: ast.Subscript, path: Path, stack: Stack) -> None:
        if parent.value is not node or not isinstance(parent.ctx, ast.Load):
            return
        if isinstance(parent.slice, ast.Slice):
            self.go(facts, parent, (ANY, *path[1:]) if path else (), stack)
        elif _may_be(path, parent.slice):
            self.go(facts, parent, path[1:], stack)

    # Where a value is put -------------------------------------------------------------------------------------

    def bind(self, facts: Facts, target: ast.expr, path: Path = (), stack: Stack = ()) -> None:
        """Follow what a statement stores in a target."""
        if isinstance(target, ast.Starred):
            self.bind(facts, target.value, (), stack)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for index, item in enumerate(target.elts):
                if not path or path[0] in (ANY, index):
                    self.bind(facts, item, path[1:], stack)
        elif isinstance(target, ast.Attribute):
            self._store(facts, target, path)
        elif isinstance(target, ast.Subscript):
            self.hold(facts, target.value, (target.slice.value if isinstance(target.slice, ast.Constant) else ANY, *path), stack)
        elif isinstance(target, ast.Name):
            binding = _binding_of(facts, target)
            if binding is None:
                self._meets(End.UNSEEN, facts, target)
                return
            if binding.how is Bound.AUGMENTED:
                self.kept = True
                self._aliases(facts, target, path, stack)
            self.go_to_uses(facts, target, binding, path, stack)

    def go_to_uses(self, facts: Facts, name: ast.Name, binding: Binding, path: Path = (), stack: Stack = ()) -> None:
        """Follow a value to all reads of a variable that may see one binding of it."""
        found = facts.names.lookup(name.id, name)
        if found is not None and found[0] is facts.names.module and _is_imported(facts, name):
            self._meets(End.UNSEEN, facts, name)
        for use in facts.names.uses(name):
            changed = facts.tree.parent(use)
            if isinstance(use.ctx, ast.Load):
                if any(item is binding for item in facts.flow.reaching(use)):
                    self.go(facts, use, path, stack)
            elif isinstance(changed, ast.AugAssign) and any(item is binding for item in facts.flow.reaching(use)):
                own = _binding_of(facts, use)
                if own is not None and own is not binding and (id(own), stack) not in self._seen:
                    self._seen.add((id(own), stack))
                    self.go_to_uses(facts, use, own, path, stack)

    def _aliases(self, facts: Facts, target: ast.Name, path: Path, stack: Stack) -> None:
        """Follow a tensor that is written in place to the other variables that hold it."""
        for binding in facts.flow.reaching(target):
            self._hold_in_others(facts, binding, path, stack)
            named = isinstance(binding.value, (ast.Name, ast.Attribute, ast.Subscript)) and binding.how is Bound.ASSIGN and not binding.path
            if named and binding.value is not None and not is_older(facts, binding.node, target):
                self.hold(facts, binding.value, path, stack)

    def _hold_in_others(self, facts: Facts, binding: Binding, path: Path, stack: Stack) -> None:
        """Follow what is put into an object to the other names that one statement gave it: ``a = b = []``."""
        if isinstance(binding.node, ast.Assign) and len(binding.node.targets) > 1 and not isinstance(binding.value, ast.Constant):
            for other in binding.node.targets:
                if not isinstance(other, (ast.Tuple, ast.List)):
                    self.hold(facts, other, path, stack)

    def hold(self, facts: Facts, container: ast.expr, path: Path, stack: Stack = ()) -> None:
        """Follow what is put into a container to all places that may read it there."""
        self.kept = True
        key = ("held", id(container), path, tuple(id(item.call) for item in stack))
        if key in self._seen or len(path) > 4:
            return
        self._seen.add(key)
        if isinstance(container, ast.Attribute):
            self._store(facts, container, path)
        elif isinstance(container, ast.Subscript):
            self.hold(facts, container.value, (ANY, *path), stack)
        elif isinstance(container, ast.Call):
            source = receiver(container)
            if source is None or container.func.attr not in ("setdefault", "get"):  # type: ignore[attr-defined]
                self._meets(End.UNSEEN, facts, container)
            else:
                self.hold(facts, source, (ANY, *path), stack)
        elif isinstance(container, ast.Name):
            for use in facts.names.uses(container):
                if isinstance(use.ctx, ast.Load):
                    self.go(facts, use, path, stack)
            for binding in facts.flow.reaching(container):
                self._hold_in(facts, binding, path, stack)

    def _hold_in(self, facts: Facts, binding: Binding, path: Path, stack: Stack) -> None:
        """Follow what is put into a container to the other names of that container."""
        if binding.how is Bound.PARAMETER and isinstance(binding.node, ast.arg):
            function = facts.tree.parent(facts.tree.parent(binding.node))  # type: ignore[arg-type]
            entered = next((item for item in stack[-1:] if item.function is function), None)
            calls = [(entered.facts, entered.call)] if entered else _callers(facts, function)
            for home, call in calls or ():
                assert isinstance(function, FUNCTIONS)
                given = passed(call, function, binding.node, bound=facts.tree.class_of(function) is not None)
                if given is None:
                    self._meets(End.UNSEEN, home, call)
                elif not isinstance(given, ast.Constant):
                    self.hold(home, given, path, stack[:-1])
            if not calls:
                self._meets(End.UNSEEN, facts, binding.node)
        elif binding.how is Bound.IMPORT:
            self._meets(End.UNSEEN, facts, binding.node)
        else:
            self._hold_in_others(facts, binding, path, stack)
        if isinstance(binding.value, (ast.Name, ast.Attribute, ast.Subscript)) and not binding.path:
            deeper = (ANY, *path) if binding.how is Bound.LOOP else path
            self.hold(facts, binding.value, deeper, stack)

    def _store(self, facts: Facts, target: ast.Attribute, path: Path) -> None:
        """Follow a value to the reads of an attribute of that name, in all files of the program."""
        self.kept = True
        self._read_as(facts, _class_of_self(facts, target), target.attr, path)

    def _read_as(self, facts: Facts, owner: ast.ClassDef | None, name: str, path: Path) -> None:
        """Follow a value to the reads of an attribute, by its name or by a text that may be its name.

        Args:
            owner: the class whose objects have it, None where that is not known.
        """
        for there in facts.program.everywhere:
            for use in there.tree.attributes.get(name, ()):
                call = there.tree.parent(use)
                if not isinstance(use.ctx, ast.Load) or (isinstance(call, ast.Call) and call.func is use):
                    continue
                other = _class_of_self(there, use)
                if not (owner and other and not are_related(facts, owner, there, other)) and there.names.qualified(use) is None:
                    self.go(there, use, path)
            for call in there.tree.calls.get("getattr", ()):
                if len(call.args) > 1 and _may_name(there, call.args[1], name):
                    self.go(there, call, path)
            for table in (*there.tree.attributes.get("__dict__", ()), *there.tree.calls.get("vars", ())):
                if _is_quoted(there, name):
                    self.go(there, table, (name, *path))

    # Calls ----------------------------------------------------------------------------------------------------

    def _given(self, facts: Facts, node: ast.expr, call: ast.Call, path: Path, stack: Stack) -> None:
        """A value that is an argument of a call."""
        name, meaning = last_name(call.func) or "", facts.calls.meaning(call) or ""
        source = receiver(call)
        if name in SENDING or meaning.startswith(GRADIENT_CALLS):
            self._meets(End.BACKWARD, facts, call)
        elif self._sums_only:
            if meaning in _SUMS or name in _SUMMING_METHODS:
                self.go(facts, call, (), stack)
            elif name == "append" and source is not None:
                self.hold(facts, source, (ANY,), stack)
            else:
                self._enter(facts, node, call, path, stack)
        elif self._enter(facts, node, call, path, stack):
            return
        elif source is not None and name in KEEPING and not meaning.startswith("torch.") and _is_for_effect(facts, call):
            self.hold(facts, source, (ANY,) if name != "extend" else (ANY, *path[1:]), stack)
        elif meaning == "builtins.map" and call.args[0] is not node:
            self._applied(facts, call, path, stack)
        elif meaning in ("builtins.enumerate", "builtins.zip"):
            inner = 1 if meaning == "builtins.enumerate" else call.args.index(node) if node in call.args else ANY
            self.go(facts, call, (ANY, inner, *path[1:]), stack)
        elif not self._ends_in(facts, call, name, meaning):
            known = meaning.startswith(("torch.", "builtins.", "torchvision.", "copy.", "itertools.", "functools.", "collections."))
            if known or self._hands_on(facts, call, name):
                if name.endswith("_") and source is not None and not name.startswith("_"):
                    self.hold(facts, source, (), stack)
                self.go(facts, call, (0,) if meaning.startswith("torch.") and gives_indices(call, 1) else (), stack)
            else:
                self._meets(End.UNSEEN, facts, call)

    def _applied(self, facts: Facts, call: ast.Call, path: Path, stack: Stack) -> None:
        """A value in an argument of ``map``, to whose items a function is applied."""
        function = call.args[0]
        meaning, definition = facts.names.qualified(function) or "", facts.names.definition(function)
        if last_name(function) in SENDING or meaning.startswith(GRADIENT_CALLS):
            self._meets(End.BACKWARD, facts, call)
        elif isinstance(function, ast.Lambda):
            self.receive(facts, function, path[1:], stack)
        elif definition is not None and isinstance(definition.node, FUNCTIONS):
            self.receive(definition.facts, definition.node, path[1:], (*stack, Entered(definition.node, facts, call)))
        elif not meaning:
            self._meets(End.UNSEEN, facts, call)
        elif not (meaning in _NUMBERS or last_name(function) in GRAPHLESS_METHODS):
            self.go(facts, call, (ANY,), stack)

    def receive(self, facts: Facts, function: Function | ast.Lambda, path: Path = (), stack: Stack = ()) -> None:
        """Follow what is given to all parameters of a function but ``self``."""
        for parameter in parameters(function.args):
            for use in facts.tree.names.get(parameter.arg, ()):
                if isinstance(use.ctx, ast.Load) and facts.tree.is_within(use, function) and not facts.is_self(use):
                    if any(item.node is parameter for item in facts.flow.reaching(use)):
                        self.go(facts, use, path, stack)

    @staticmethod
    def _ends_in(facts: Facts, call: ast.Call, name: str, meaning: str) -> bool:
        """Whether no gradient comes back out of a call: it reports, counts or makes numbers."""
        if meaning in _NUMBERS or meaning.startswith(NO_GRAPHS) or name in _REPORTING:
            return True
        if meaning.startswith("torch.") and name in GRAPHLESS_FUNCTIONS:
            return True
        source = receiver(call)
        if source is not None and (facts.optimizers.is_scheduler(source) or name in ("eq", "ne", "gt", "lt", "ge", "le")):
            return True
        if isinstance(source, ast.Constant) and name in ("format", "join"):
            return True
        return facts.effects.own(call) in (*REPORTS, Effect.BAR, Effect.OPEN, Effect.SHELL)

    @staticmethod
    def _hands_on(facts: Facts, call: ast.Call, name: str) -> bool:
        """Whether a call surely gives something made of its arguments, and does nothing else with them."""
        if facts.models.of(call.func):
            return True
        definition = facts.names.definition(call.func)
        if definition is not None and isinstance(definition.node, ast.ClassDef):
            return True
        source = receiver(call)
        return source is not None and (name in _COMBINING or facts.kinds.is_tensor(source))

    def _enter(self, facts: Facts, node: ast.expr, call: ast.Call, path: Path, stack: Stack) -> bool:
        """Follow an argument into the functions of the project that a call runs; whether there is one."""
        functions = list(called(facts, call))
        for definition in () if functions else classes_of(facts, call.func):
            found = method_of(definition, "forward")
            if found is not None and isinstance(found.node, FUNCTIONS):
                functions.append((found.facts, found.node))
        for there, function in functions:
            parameter = _receiving(call, function, node, there.tree.class_of(function) is not None)
            if parameter is None or len(stack) >= _DEEPEST or there.is_decorated(function):
                self._meets(End.UNSEEN, facts, call)
                continue
            again = next((place for place, item in enumerate(stack) if item.function is function), None)
            if again is not None:
                self.go(facts, call, (), stack)  # it is followed already; what comes back may be made of it
            entered = (*stack, Entered(function, facts, call)) if again is None else stack[: again + 1]
            for use in there.tree.names.get(parameter.arg, ()):
                reaching = there.flow.reaching(use) if there.tree.is_within(use, function) else ()
                if any(item.node is parameter for item in reaching):
                    if isinstance(use.ctx, ast.Load):
                        self.go(there, use, path, entered)
                    elif isinstance(there.tree.parent(use), ast.AugAssign):
                        self.bind(there, use, path, entered)
        return bool(functions)

    def _returned(self, facts: Facts, node: ast.AST, path: Path, stack: Stack) -> None:
        """A value that its function gives back."""
        function = facts.tree.function(node)
        if stack and stack[-1].function is function:
            entered = stack[-1]
            self.go(entered.facts, entered.call, path, stack[:-1])
            return
        owner = facts.tree.class_of(function) if isinstance(function, FUNCTIONS) else None
        if isinstance(function, FUNCTIONS) and owner is not None and _is_property(facts, function):
            self._read_as(facts, owner, function.name, path)
            return
        calls = _callers(facts, function)
        if not calls:
            self._meets(End.UNSEEN, facts, node)
        for there, call in calls or ():
            self.go(there, call, path)


def gives_indices(call: ast.Call, position: int) -> bool:
    """Whether a call gives a pair of a tensor's values and their indices, which have no graph: ``x.max(1)``, ``x.topk(k)``.

    Args:
        call: of a tensor's method, or of the function of torch of that name.
        position: that of the argument ``dim``.
    """
    name = last_name(call.func)
    dim = argument(call, "dim", position)
    number = dim.operand if isinstance(dim, ast.UnaryOp) else dim
    chosen = isinstance(number, ast.Constant) and type(number.value) is int
    return name in _ORDERING or (name in _CHOOSING and (chosen or keyword(call, "dim") is not None))


def _callers(facts: Facts, function: ast.AST | None) -> list[tuple[Facts, ast.Call]] | None:
    return facts.callers_everywhere(function) if isinstance(function, FUNCTIONS) else None


def _is_property(facts: Facts, function: Function) -> bool:
    """Whether a method is read as an attribute."""
    return [facts.names.qualified(item) for item in function.decorator_list] == ["builtins.property"]


def _receiving(call: ast.Call, function: Function, node: ast.expr, bound: bool) -> ast.arg | None:
    """The parameter that gets an argument of a call."""
    return next(
        (item for item in parameters(function.args) if passed(call, function, item, bound) is node),
        None,
    )


def _binding_of(facts: Facts, target: ast.Name) -> Binding | None:
    """The binding that a target makes: that of the nearest statement or clause around it."""
    found = [item for item in facts.names.bindings(target) if facts.tree.is_within(target, item.node)]
    around = [target, *facts.tree.ancestors(target)]
    return min(found, key=lambda item: around.index(item.node), default=None)


def is_older(facts: Facts, assignment: ast.AST, target: ast.expr) -> bool:
    """Whether a variable got its value in an earlier iteration, on the other branch of one condition, and its source is made anew since."""
    tree = facts.tree
    branches = (outer for outer in tree.ancestors(target) if isinstance(outer, ast.If) and tree.is_within(assignment, outer))
    branch = next(branches, None)
    source = assignment.value if isinstance(assignment, ast.Assign) else None
    if branch is None or not isinstance(source, ast.Name):
        return False
    apart = any(tree.is_within(assignment, item) for item in branch.body) != any(tree.is_within(target, item) for item in branch.body)
    around = tree.parent(branch)
    made = facts.flow.reaching(source)
    return apart and isinstance(around, LOOPS) and bool(made) and all(item.node in around.body for item in made)


def _is_imported(facts: Facts, name: ast.Name) -> bool:
    """Whether another file reads a variable of this module."""
    if facts.program.is_guarded(name):
        return False
    for path in facts.project.mentioning(name.id, facts.path):
        there = facts.project.file(path)
        if there is None:
            return True
        for node in there.tree.imports:
            if isinstance(node, ast.ImportFrom) and any(alias.name in (name.id, "*") for alias in node.names):
                if there.project.module(node.module or "", there.path, node.level) is facts:
                    return True
        if any(there.names.module_of(use.value) is facts for use in there.tree.attributes.get(name.id, ())):
            return True
    return False


def _may_be(path: Path, asked: ast.expr) -> bool:
    """Whether an entry that is read may be the one that a path names."""
    if not path or path[0] == ANY or not isinstance(asked, ast.Constant):
        return True
    return path[0] == asked.value


def _is_for_effect(facts: Facts, call: ast.Call) -> bool:
    return isinstance(facts.tree.parent(call), (ast.Expr, ast.Lambda)) or last_name(call.func) == "setdefault"


def _may_name(facts: Facts, text: ast.expr, name: str) -> bool:
    """Whether a text may be the name of an attribute: as far as its beginning and end are written, or because the file has the name."""
    if isinstance(text, ast.Constant):
        return text.value == name
    parts = text.values if isinstance(text, ast.JoinedStr) else [text.left, text.right] if isinstance(text, ast.BinOp) else []
    edges = [item.value if isinstance(item, ast.Constant) else "" for item in (*parts[:1], *parts[-1:])]
    if any(edges) and not (isinstance(text, ast.BinOp) and not isinstance(text.op, ast.Add)):
        return name.startswith(str(edges[0])) and name.endswith(str(edges[1]))
    return _is_quoted(facts, name)


def _is_quoted(facts: Facts, word: str) -> bool:
    """Whether a file has a word as a text of its own."""
    return f'"{word}"' in facts.source.text or f"'{word}'" in facts.source.text


def _class_of_self(facts: Facts, node: ast.Attribute) -> ast.ClassDef | None:
    """The class whose object an attribute is read from or stored in, where that is ``self``."""
    return facts.tree.method_class(node) if isinstance(node.value, ast.Name) and facts.is_self(node.value) else None


def are_related(facts: Facts, owner: ast.ClassDef, there: Facts, other: ast.ClassDef) -> bool:
    """Whether objects of two classes may share an attribute: one class is a base of the other, or both have a base in common."""
    mine = {item.node for item in lineage(Definition(facts, owner))}
    return any(item.node in mine for item in lineage(Definition(there, other)))
