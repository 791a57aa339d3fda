"""Old names of automatic mixed precision: what took their place, and whether a use of one can be exchanged.

The new classes serve all devices and are told which. An object of a new class is none of the old one, while one of the old
class is one of the new: so a question for the class changes no later than what it is asked of.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfix.facts.code.callers import constructions
from torchfix.facts.code.calls import argument, has_stars, is_constant
from torchfix.facts.code.classes import super_call
from torchfix.facts.code.factories import is_only_called, kept_under
from torchfix.facts.code.names import Definition
from torchfix.facts.code.references import Reference, Role
from torchfix.facts.code.tree import FUNCTIONS, last_name
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.project.versions import Version
from torchfix.facts.training.models import is_module_class

if TYPE_CHECKING:
    from torchfix.facts import Facts


@dataclass(frozen=True)
class Successor:
    """What took the place of an old name.

    Args:
        name: the new dotted name.
        since: the torch version that brought it.
        device: what it is told first.
        parameters: of a class, the old parameters in their order.
        decorates: whether it decorates functions, and takes the device by keyword.
        keeps_order: whether the new parameters behind the device stand in the old order.
    """

    name: str
    since: Version
    device: str
    parameters: tuple[str, ...] = ()
    decorates: bool = False
    keeps_order: bool = True

    @property
    def is_region(self) -> bool:
        """Whether it is autocast's."""
        return self.parameters == _AUTOCAST


_AUTOCAST = ("enabled", "dtype", "cache_enabled")
_SCALER = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")
SUCCESSORS = {
    "torch.cuda.amp.autocast": Successor("torch.autocast", (1, 10), "cuda", _AUTOCAST, keeps_order=False),
    "torch.cpu.amp.autocast": Successor("torch.autocast", (1, 10), "cpu", _AUTOCAST, keeps_order=False),
    "torch.cuda.amp.GradScaler": Successor("torch.amp.GradScaler", (2, 3), "cuda", _SCALER),
    "torch.cpu.amp.GradScaler": Successor("torch.amp.GradScaler", (2, 3), "cpu", _SCALER),
    "torch.cuda.amp.custom_fwd": Successor("torch.amp.custom_fwd", (2, 4), "cuda", decorates=True),
    "torch.cuda.amp.custom_bwd": Successor("torch.amp.custom_bwd", (2, 4), "cuda", decorates=True),
    "torch.get_autocast_gpu_dtype": Successor("torch.get_autocast_dtype", (2, 4), "cuda"),
    "torch.get_autocast_cpu_dtype": Successor("torch.get_autocast_dtype", (2, 4), "cpu"),
    "torch.set_autocast_gpu_dtype": Successor("torch.set_autocast_dtype", (2, 4), "cuda"),
    "torch.set_autocast_cpu_dtype": Successor("torch.set_autocast_dtype", (2, 4), "cpu"),
    "torch.is_autocast_cpu_enabled": Successor("torch.is_autocast_enabled", (2, 4), "cpu"),
    "torch.set_autocast_cpu_enabled": Successor("torch.set_autocast_enabled", (2, 4), "cpu"),
}
_DTYPE_SETTERS = ("set_autocast_gpu_dtype", "set_autocast_cpu_dtype", "set_autocast_dtype")
_DTYPE_GETTERS = ("get_autocast_gpu_dtype", "get_autocast_cpu_dtype", "get_autocast_dtype")
# Frameworks that patch operators instead of switching torch's autocast.
_WITHOUT_AUTOCAST = ("Apex",)

_SCRIPTING = ("script", "script_method", "ScriptModule")

_CHOICE = Obstacle(
    "version-guard",
    "the program chooses between the old spelling and another one itself, for versions of torch that lack one of them",
    "drop the choice once every torch that the program must run on has the new spelling",
)
_DERIVED = Obstacle(
    "derived",
    "a class is derived from the old one, and not every place that gives its constructor arguments is seen",
    "derive it from the new class, and pass the device",
)
_HANDED_ON = Obstacle(
    "handed-on",
    "it is handed on rather than called, and who calls it gives no device",
    'hand on functools.partial of the new one, with "cuda"',
)
_SCRIPTED = Obstacle(
    "torchscript", "TorchScript compiles this code, and knows the old class in its own way", "change it together with a test of the script"
)
_HIDDEN = Obstacle(
    "hidden-arguments", "stars hide which arguments are given, and the new class takes them in another order", "write the arguments out"
)


class Superseded:
    """The old names in one file.

    Args:
        facts: the file.

    Attributes:
        references: their uses, in text order.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self.references = facts.references.to(SUCCESSORS)
        self._elsewhere: dict[str, list[tuple[Facts, Reference]]] = {}

    def obstacle(self, reference: Reference) -> Obstacle | None:
        """Why a name must stay as it is."""
        facts, successor = self._facts, SUCCESSORS[reference.name]
        found = self._too_old(successor) or self._rebound(reference.name) or self._hidden(reference)
        if found is not None:
            return found
        if self._is_choice(facts, reference):
            return _CHOICE
        if reference.role is Role.DERIVED and self.derived(reference) is None:
            return _DERIVED
        if reference.role is Role.COMPARED or (reference.role is Role.DECORATING and not successor.decorates):
            return _HANDED_ON
        if reference.role is Role.HANDED_ON and self.kept(reference) is None:
            return _HANDED_ON
        if successor.is_region and self._is_scripted(reference.node):
            return _SCRIPTED
        call = reference.call
        if call is not None and has_stars(call) and not successor.keeps_order:
            if any(isinstance(item, ast.Starred) for item in call.args) or self.followed(reference):
                return _HIDDEN
        makes = reference.role in (Role.CALLED, Role.DERIVED)
        return self._asked(reference) if reference.role is Role.CHECKED or (makes and successor.parameters) else None

    def _too_old(self, successor: Successor) -> Obstacle | None:
        torch = self._facts.project.torch
        if torch is None or torch >= successor.since:
            return None
        since = ".".join(map(str, successor.since))
        words = f"{successor.name} came with torch {since}, and the code must run on torch {torch[0]}.{torch[1]}"
        return Obstacle("torch-too-old", words, f"raise the project's lower bound, or set it with --torch {since}")

    def _rebound(self, name: str) -> Obstacle | None:
        """The place that puts something else under the old name, which its users would no longer get."""
        places = [(there, use.node) for there, use in self._uses(name) if use.role is Role.REBOUND]
        module, _, last = name.rpartition(".")
        for there in self._facts.program.holding(last):
            places += [
                (there, call)
                for word in ("setattr", "patch")
                for call in there.tree.calls.get(word, ())
                if _sets(there, call, module, last)
            ]
        for there, node in places[:1]:
            words = f"{there.path}:{node.lineno} puts something else in its place, which the new name does not mean"
            return Obstacle("rebound", words, "change that place first")
        return None

    def _hidden(self, reference: Reference) -> Obstacle | None:
        """Something else that is named torch where the new name would be written."""
        names, node = self._facts.names, reference.node
        found = names.lookup("torch", node)
        if found is None or found[0] is names.module or names.spell(SUCCESSORS[reference.name].name, node) is not None:
            return None
        return Obstacle("name-taken", "something else is named torch here", "give it another name")

    def _is_choice(self, facts: Facts, reference: Reference) -> bool:
        """Whether the program has a choice here; not one by trying the import, where every torch that it runs on has the name."""
        others = (SUCCESSORS[reference.name].name,)
        if facts.project.torch is not None:
            return facts.references.is_branch(reference.node, others)
        return facts.references.is_choice(reference, others)

    # Questions for the class ----------------------------------------------------------------------------------

    def checks(self, reference: Reference) -> list[tuple[Facts, Reference]]:
        """The ``isinstance`` questions of the program for the class that a use makes an object of."""
        if not SUCCESSORS[reference.name].parameters or reference.role not in (Role.CALLED, Role.DERIVED):
            return []
        return [(there, use) for there, use in self._uses(reference.name) if use.role is Role.CHECKED]

    def _asked(self, reference: Reference) -> Obstacle | None:
        """A place where the program tells objects of the old class from others in a way that cannot change along."""
        successor = SUCCESSORS[reference.name]
        help = "change that place first: objects of both classes are of the new one"
        asks = False
        for there, use in self._uses(reference.name):
            where = f"{there.path}:{use.node.lineno}"
            unclear = use.role is Role.HANDED_ON and not successor.is_region
            if use.role is Role.COMPARED or unclear or (use.role is Role.CHECKED and self._is_choice(there, use)):
                words = f"{where} asks, or may ask, whether something is of the old class, and an object of the new one is not"
                return Obstacle("checked-elsewhere", words, help)
            asks = asks or use.role is Role.CHECKED
        for there in self._facts.program.holding(successor.name.rpartition(".")[2]) if asks else ():
            for made in there.calls.to(successor.name, *(old for old, new in SUCCESSORS.items() if new.name == successor.name)):
                if there.calls.meaning(made) != reference.name:
                    words = f"{there.path}:{made.lineno} makes an object that the program tells from those of the old class"
                    return Obstacle("told-apart", words, "ask for something else than the class")
        return None

    def _uses(self, name: str) -> list[tuple[Facts, Reference]]:
        """The uses of an old name in all files of the program."""
        if name not in self._elsewhere:
            files = self._facts.program.holding(name.rpartition(".")[2])
            self._elsewhere[name] = [(there, use) for there in files for use in there.references.to([name])]
        return self._elsewhere[name]

    # Uses that are no plain call ------------------------------------------------------------------------------

    def kept(self, reference: Reference) -> ast.expr | None:
        """The expression of autocast, or of a partial call of it, that the program keeps under one name and only calls by keyword."""
        facts, node = self._facts, reference.node
        if not SUCCESSORS[reference.name].is_region:
            return None
        parent = facts.tree.parent(node)
        if isinstance(parent, ast.Call) and parent.args[:1] == [node] and facts.calls.meaning(parent) == "functools.partial":
            if len(parent.args) > 1 or has_stars(parent):
                return None
            node = parent
        name = kept_under(facts, node)
        return node if name is not None and is_only_called(facts, name) else None

    def derived(self, reference: Reference) -> list[tuple[Facts, ast.Call]] | None:
        """The calls that give a class derived from the old one what its constructor takes; None where one is not seen."""
        facts, owner = self._facts, self._facts.tree.parent(reference.node)
        alone = isinstance(owner, ast.ClassDef) and len(owner.bases) == 1 and not owner.keywords
        if not isinstance(owner, ast.ClassDef) or not alone or facts.classes.heirs(owner):
            return None
        own = [item for item in owner.body if isinstance(item, FUNCTIONS) and item.name in ("__init__", "__new__")]
        if own:
            made = super_call(own[0]) if len(own) == 1 and own[0].name == "__init__" else None
            found = [(facts, made)] if made is not None else None
        else:
            found = constructions(facts, owner)
        keeps = SUCCESSORS[reference.name].keeps_order
        return found if found is not None and (keeps or not any(has_stars(call) for _, call in found)) else None

    # What autocast takes from its surroundings ----------------------------------------------------------------

    def _is_scripted(self, node: ast.AST) -> bool:
        """Whether TorchScript may compile the code at a place: in this file, or as part of a network anywhere in the program.

        It compiles neither a module's own statements nor a function that calls the compiler.
        """
        facts = self._facts
        function = facts.tree.function(node)
        own = list(_scripting(facts))
        if function is None or any(facts.tree.is_within(use, item) for use in own for item in function.body):
            return False
        owner = facts.tree.method_class(node)
        if owner is None or not is_module_class(Definition(facts, owner)):
            return bool(own)
        return any(True for there in facts.program.holding(*_SCRIPTING) for _ in _scripting(there))

    def followed(self, reference: Reference, given: ast.Call | None = None) -> tuple[str, ...]:
        """The arguments that the new autocast takes from its surroundings, which this program changes, and that are not given.

        Args:
            reference: a use of an old name.
            given: the call that gives arguments, where it is not the one of the name.
        """
        if not SUCCESSORS[reference.name].is_region:
            return ()
        call = given or reference.call
        tests = (("dtype", self._dtype_is_changed(call)), ("cache_enabled", self._cache_is_changed()))
        changed = [name for name, is_changed in tests if is_changed]
        if call is None:
            return tuple(changed)
        missing = [name for place, name in enumerate(_AUTOCAST) if argument(call, name, place) is None]
        off = is_constant(argument(call, "enabled", 0), False) and not self._has_followers()
        return tuple(name for name in changed if name in missing and not off)

    def _dtype_is_changed(self, but: ast.Call | None) -> bool:
        """Whether another region than this one, a setter or a framework may have changed autocast's precision."""
        files = self._facts.program.everywhere
        given = any(argument(call, "dtype", 1) is not None or has_stars(call) for call in self._regions() if call is not but)
        frameworks = {name for there in files for name in there.regions.in_charge()}
        return (
            given
            or bool(frameworks - set(_WITHOUT_AUTOCAST))
            or any(name in there.tree.calls for there in files for name in _DTYPE_SETTERS)
        )

    def _cache_is_changed(self) -> bool:
        given = any(argument(call, "cache_enabled") is not None or len(call.args) > 2 for call in self._regions())
        return given or any("set_autocast_cache_enabled" in there.tree.calls for there in self._facts.program.everywhere)

    def _has_followers(self) -> bool:
        """Whether anything in the program asks which precision surrounds it."""
        files = self._facts.program.everywhere
        if any(name in there.tree.calls for there in files for name in _DTYPE_GETTERS):
            return True
        return any(argument(call, "dtype", 1) is None for there in files for call in there.calls.to("torch.autocast"))

    def _regions(self) -> list[ast.Call]:
        """The calls of anything named autocast in the program, and the partial calls that are given such a thing."""
        found: list[ast.Call] = []
        for there in self._facts.program.everywhere:
            found += there.tree.calls.get("autocast", ())
            found += (call for call in there.tree.calls.get("partial", ()) if call.args and last_name(call.args[0]) == "autocast")
        return found


def _scripting(facts: Facts) -> Iterator[ast.expr]:
    """The uses of TorchScript's compiler in a file."""
    for word in _SCRIPTING:
        for use in (*facts.tree.attributes.get(word, ()), *facts.tree.names.get(word, ())):
            if (facts.names.qualified(use) or "").startswith("torch.jit."):
                yield use


def _sets(facts: Facts, call: ast.Call, module: str, name: str) -> bool:
    """Whether ``setattr``, or a test's ``patch``, puts something under a name of a module."""
    first, *rest = (*call.args[:2], None)
    whole = is_constant(first, f"{module}.{name}")
    return whole or (first is not None and is_constant(rest[0], name) and facts.names.qualified(first) == module)
