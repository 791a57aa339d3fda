"""The code that makes samples, read through the functions and objects that it calls, for the traits that it has."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, TypeAlias

from torchfix.facts.code.instances import Instance, Origin, origins_of
from torchfix.facts.code.names import Definition
from torchfix.facts.code.scopes import Binding, Bound
from torchfix.facts.code.tree import COMPREHENSIONS, FUNCTIONS, LOOPS, Function, dotted, walk
from torchfix.facts.data import traits
from torchfix.facts.data.traits import Mark, Trait
from torchfix.facts.training.models import is_module_class
from torchfix.facts.training.regions import NO_GRAD

if TYPE_CHECKING:
    from torchfix.facts import Facts

_CACHES = ("functools.lru_cache", "functools.cache")
_Key: TypeAlias = "tuple[ast.AST | None, ast.AST | None]"  # code, and the call that made the object whose method it is
_SPECIAL = ("__init__", "__call__", "forward", "__iter__", "__getitem__")


class Reader:
    """Reads code from one entry after another and collects its marks."""

    def __init__(self) -> None:
        self._marks: dict[Mark, None] = {}
        self._once: set[_Key] = set()  # what was read as code that runs once, when an object is made
        self._often: set[_Key] = set()  # what was read as code that runs for each sample
        self._objects: list[Instance] = []
        self._attributes: dict[tuple[ast.AST, str], tuple[Instance, Facts, ast.Attribute]] = {}
        self._written: list[tuple[Instance, Facts, ast.Attribute]] = []

    def note(self, trait: Trait, facts: Facts, node: ast.AST) -> None:
        """Note that a place has a trait."""
        self._marks[Mark(trait, facts, node)] = None

    def marks(self) -> tuple[Mark, ...]:
        """All marks of what was read."""
        for instance in self._objects:
            for name in sorted(instance.attributes()):
                self._kept(instance, name, None)
        for instance, facts, use in self._attributes.values():
            self._kept(instance, use.attr, (facts, use))
        for instance, facts, target in self._written:
            if not _is_set_before_use(instance, facts, target):
                self.note(Trait.STATE, facts, target)
        return tuple(self._marks)

    def _kept(self, instance: Instance, name: str, use: tuple[Facts, ast.Attribute] | None) -> None:
        """Note what an attribute keeps: where code for each sample reads it as it is, else only that it cannot be pickled."""
        for facts, value in instance.held(name):
            key = (facts.tree.function(value), instance.made.node)
            if key in self._often and key not in self._once:
                continue  # made where it is used, in the process that uses it
            for origin in origins_of(facts, value, instance) or ():
                for trait, node in traits.of_kept(origin):
                    if use is not None:
                        self.note(trait, *use)
                    elif trait is not Trait.GENERATOR:
                        self.note(Trait.LOCAL, origin.facts, node)
                definition = facts.names.definition(origin.node) if isinstance(origin.node, ast.Name) else None
                if definition is not None and not _is_importable(definition):
                    self.note(Trait.LOCAL, definition.facts, definition.node)

    # Entries --------------------------------------------------------------------------------------------------

    def function(self, facts: Facts, function: Function | ast.Lambda, within: Instance | None = None, once: bool = False) -> None:
        """Read a function and all that it calls.

        Args:
            facts: the file that holds it.
            function: the function.
            within: the object of which it is a method.
            once: whether it runs once, in the main process, where an object is made; only devices matter there.
        """
        key = (function, within.made.node if within is not None else None)
        seen = self._once if once else self._often
        if key in seen:
            return
        seen.add(key)
        if isinstance(function, FUNCTIONS) and not once:
            called = [item.func if isinstance(item, ast.Call) else item for item in function.decorator_list]
            if any(facts.names.qualified(item) in _CACHES for item in called):
                self.note(Trait.STATE, facts, function)
        for statement in function.body if isinstance(function, FUNCTIONS) else [function.body]:
            for node in walk(statement):
                if isinstance(node, ast.Call):
                    self._call(facts, node, within, once)
                if isinstance(node, ast.Attribute) and traits.is_cuda_name(facts, node):
                    self.note(Trait.DEVICE, facts, node)
                if not once:
                    self._node(facts, node, within)

    def object(self, instance: Instance) -> None:
        """Read how an object is made, and what it keeps that cannot cross to another process."""
        key = (instance.definition.node, instance.made.node)
        if key in self._once:
            return
        self._once.add(key)
        if not _is_importable(instance.definition):
            self.note(Trait.LOCAL, instance.definition.facts, instance.definition.node)
        constructor = instance.method("__init__")
        if constructor is not None:
            self.function(*constructor, instance, once=True)
        self._objects.append(instance)
        for name in instance.attributes():
            for facts, value in instance.held(name):
                for origin in origins_of(facts, value, instance) or ():
                    for inner in instances_of(origin):
                        self.object(inner)

    def called(self, origin: Origin, crosses: bool = True) -> None:
        """Read what happens when a value is called: a function, or an object of the project or of a library.

        Args:
            origin: the value.
            crosses: whether the value itself goes to the worker, so that a lambda must be pickled.
        """
        facts, node, within = origin.facts, origin.node, origin.within
        if isinstance(node, ast.Lambda):
            if crosses:
                self.note(Trait.LOCAL, facts, node)
            self.function(facts, node, within)
        elif isinstance(node, (ast.List, ast.Tuple)):
            for item in elements_of(origin) or ():
                self.called_from(item.facts, item.node, item.within, crosses)
        elif isinstance(node, ast.Call):
            self._called_object(origin, node)
        elif isinstance(node, (ast.Name, ast.Attribute)):
            self._called_name(origin, node, crosses)
        elif not isinstance(node, ast.Constant):
            self.note(Trait.UNSEEN, facts, node)

    def called_from(self, facts: Facts, expression: ast.expr, within: Instance | None = None, crosses: bool = True) -> None:
        """Read what happens when the value of an expression is called; arguments as for :meth:`called`."""
        origins = origins_of(facts, expression, within)
        if origins is None:
            self.note(Trait.UNSEEN, facts, expression)
        for origin in origins or ():
            self.called(origin, crosses)

    # Values that are called -----------------------------------------------------------------------------------

    def _called_name(self, origin: Origin, node: ast.Name | ast.Attribute, crosses: bool) -> None:
        facts = origin.facts
        definition = facts.names.definition(node)
        if definition is not None:
            self._definition(definition, crosses)
            return
        if isinstance(node, ast.Attribute):
            for instance in objects_of(facts, node.value, origin.within) or ():
                method = instance.method(node.attr)
                if method is not None:
                    self.function(*method, instance)
                    return
        self._library_object(facts, node, _library_name(facts, node))

    def _library_object(self, facts: Facts, node: ast.AST, meaning: str | None) -> None:
        if meaning is None:
            self.note(Trait.UNSEEN, facts, node)
            return
        for trait in traits.of_library_object(meaning):
            self.note(trait, facts, node)

    def _called_object(self, origin: Origin, call: ast.Call) -> None:
        facts = origin.facts
        meaning = _library_name(facts, call.func)
        instances = instances_of(origin)
        for instance in instances:
            self._called_instance(instance, facts, call)
        if instances:
            return
        if meaning == "functools.partial" and call.args:
            self.called_from(facts, call.args[0], origin.within)
        elif meaning == "builtins.getattr" and (module := facts.names.module_of(call.args[0])) is not None:
            for function in module.tree.functions:
                self.function(module, function)  # whichever of the module's functions the name chooses
        elif meaning is not None and meaning.startswith("builtins."):
            self.note(Trait.UNSEEN, facts, call)
        else:
            self._library_object(facts, call, meaning)
            for given in (*call.args, *(item.value for item in call.keywords)):
                self.handed_to_library(facts, given, origin.within)

    def _called_instance(self, instance: Instance, facts: Facts, call: ast.Call) -> None:
        if is_module_class(instance.definition) and not facts.regions.under(call, NO_GRAD):
            self.note(Trait.GRAPH, facts, call)
        method = instance.method("__call__") or instance.method("forward")
        self.object(instance)
        if method is not None:
            self.function(*method, instance)
        elif instance.library_bases and all(traits.is_transform(base) for base in instance.library_bases):
            for base in instance.library_bases:
                self._library_object(facts, call, base)
        else:
            self.note(Trait.UNSEEN, facts, call)

    def handed_to_library(self, facts: Facts, given: ast.expr, within: Instance | None) -> None:
        """Read what an object of a library may call: the transforms in ``Compose([...])``, the function in ``Lambda(f)``."""
        for origin in origins_of(facts, given, within) or ():
            node = origin.node
            if isinstance(node, (ast.List, ast.Tuple)):
                for item in elements_of(origin) or ():
                    self.handed_to_library(item.facts, item.node, item.within)
            elif isinstance(node, ast.Lambda):
                self.called(origin)
            elif isinstance(node, (ast.Call, ast.Name, ast.Attribute)):
                named = node.func if isinstance(node, ast.Call) else node
                transform = traits.is_transform(origin.facts.names.qualified(named))
                if transform or instances_of(origin) or origin.facts.names.definition(named) is not None:
                    self.called(origin)

    def _definition(self, definition: Definition, crosses: bool) -> None:
        if isinstance(definition.node, ast.ClassDef):
            instance = Instance(definition, Origin(definition.facts, ast.Constant(None)))
            for name in _SPECIAL:
                method = instance.method(name)
                if method is not None:
                    self.function(*method, instance)
            return
        if crosses and not _is_importable(definition):
            self.note(Trait.LOCAL, definition.facts, definition.node)
        self.function(definition.facts, definition.node)

    # Nodes ----------------------------------------------------------------------------------------------------

    def _node(self, facts: Facts, node: ast.AST, within: Instance | None) -> None:
        if isinstance(node, ast.Attribute):
            self._attribute(facts, node, within)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            self._global(facts, node)
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            if traits.outlives_sample(facts, node.value):
                self.note(Trait.STATE, facts, node)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            if any(_rebinds(facts, node, name) for name in node.names):
                self.note(Trait.STATE, facts, node)
        elif isinstance(node, (*LOOPS, *COMPREHENSIONS)) or (isinstance(node, ast.BinOp) and not _is_in_index(facts, node)):
            self.note(Trait.WORK, facts, node)

    def _attribute(self, facts: Facts, node: ast.Attribute, within: Instance | None) -> None:
        own = isinstance(node.value, ast.Name) and facts.is_self(node.value)
        if isinstance(node.ctx, ast.Load):
            if not own and facts.names.module_of(node.value) is not None and facts.names.definition(node) is None:
                self.note(Trait.VARIABLE, facts, node)
            if own and within is not None:
                self._attributes.setdefault((within.made.node, node.attr), (within, facts, node))
                method = within.method(node.attr)
                if method is not None and method[1].decorator_list:
                    self.function(*method, within)  # a property
        elif own and within is not None and isinstance(facts.tree.statement(node), ast.Assign):
            function = facts.tree.function(node)
            if function is not None and function.name != "__init__":  # there an object is made, and nothing remembered
                self._written.append((within, facts, node))
        elif own or traits.outlives_sample(facts, node.value):
            self.note(Trait.STATE, facts, node)

    def _global(self, facts: Facts, name: ast.Name) -> None:
        """A variable of the module: what it keeps, and who sets it."""
        found = facts.names.lookup(name.id, name)
        if found is None or found[0] is not facts.names.module:
            return
        for binding in found[1]:
            if binding.how is Bound.IMPORT and _is_project_variable(facts, binding, name):
                self.note(Trait.VARIABLE, facts, name)
            if binding.how is Bound.AUGMENTED:
                self.note(Trait.STATE, facts, name)
            elif binding.how is Bound.ASSIGN and binding.value is not None:
                self.note(Trait.VARIABLE, facts, name)
                if facts.tree.function(binding.node) is not None or facts.program.is_guarded(binding.node):
                    self.note(Trait.MAIN_ONLY, facts, name)
                for trait, _ in traits.of_kept(Origin(facts, binding.value)):
                    if trait is not Trait.LOCAL:
                        self.note(trait, facts, name)

    def _call(self, facts: Facts, call: ast.Call, within: Instance | None, once: bool) -> None:
        for trait in traits.of_call(facts, call):
            if trait is Trait.DEVICE or not once:
                self.note(trait, facts, call)
        definition = facts.names.definition(call.func)
        if definition is not None and isinstance(definition.node, ast.ClassDef):
            instance = Instance(definition, Origin(facts, call, within))
            for name in _SPECIAL:
                method = instance.method(name)
                if method is not None:
                    self.function(*method, instance, once)
        elif definition is not None and isinstance(definition.node, FUNCTIONS):
            self.function(definition.facts, definition.node, None, once)
        elif isinstance(call.func, ast.Attribute):
            self._method_call(facts, call, call.func, within, once)
        elif isinstance(call.func, ast.Name) and not once:
            self._variable_call(facts, call.func, within)
        elif isinstance(call.func, ast.Call) and not once:
            self.called_from(facts, call.func, within, crosses=False)
        if not once:
            self._arguments(facts, call, within)

    def _arguments(self, facts: Facts, call: ast.Call, within: Instance | None) -> None:
        """What a call is given: functions count as called (``map(load, paths)``), kept lists that it shuffles and iterators as changed."""
        for given in (*call.args, *(item.value for item in call.keywords)):
            definition = facts.names.definition(given) if isinstance(given, (ast.Name, ast.Attribute)) else None
            if definition is not None and isinstance(definition.node, FUNCTIONS):
                self.function(definition.facts, definition.node)
            elif within is not None and isinstance(given, ast.Attribute) and _is_own(facts, given.value):
                method = within.method(given.attr)
                if method is not None:
                    self.function(*method, within)
        meaning = facts.calls.meaning(call) or ""
        changed = call.args[:1] if meaning == "builtins.next" or meaning.endswith("random.shuffle") else []
        if any(traits.outlives_sample(facts, given) and not _is_made_above(facts, given) for given in changed):
            self.note(Trait.STATE, facts, call)

    def _method_call(self, facts: Facts, call: ast.Call, func: ast.Attribute, within: Instance | None, once: bool) -> None:
        value = func.value
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "super":
            asking = facts.tree.function(call)
            method = within.method(func.attr, behind=asking) if within is not None and asking is not None else None
            if method is not None:
                self.function(*method, within, once)
        elif _is_own(facts, value):
            self._own_call(facts, func, within, once)
        elif _library_name(facts, func) is None:
            self._other_call(facts, func, within, once)

    def _own_call(self, facts: Facts, func: ast.Attribute, within: Instance | None, once: bool) -> None:
        method = within.method(func.attr) if within is not None else None
        if method is not None:
            self.function(*method, within, once)
        elif not once:
            origins = within.attribute(func.attr) if within is not None else None
            if origins == () and within is not None and within.library_bases:
                origins = within.given_to_library(func.attr)
            if not origins and origins != ():
                self.note(Trait.UNSEEN, facts, func)
            for origin in origins or ():
                self.called(origin, crosses=False)  # what the object keeps is judged by itself

    def _other_call(self, facts: Facts, func: ast.Attribute, within: Instance | None, once: bool) -> None:
        """A method of an object that is not ``self``: of the project's own it is read, of an unknown one it is out of sight."""
        objects = objects_of(facts, func.value, within)
        for instance in objects or ():
            method = instance.method(func.attr)
            if method is not None:
                self.function(*method, instance, once)
        if once or objects:
            return
        kept = traits.outlives_sample(facts, func.value)
        if kept and func.attr in traits.CHANGING_METHODS:
            if not _is_made_above(facts, func.value):
                self.note(Trait.STATE, facts, func)
        elif kept and objects is None and func.attr not in traits.DATA_METHODS:
            self.note(Trait.UNSEEN, facts, func)

    def _variable_call(self, facts: Facts, name: ast.Name, within: Instance | None) -> None:
        """A call of a variable or parameter: of each item of a list where a loop gives them."""
        if _library_name(facts, name) is not None:
            return
        for binding in facts.names.bindings(name):
            if binding.how is Bound.LOOP and binding.value is not None:
                origins = origins_of(facts, binding.value, within) if not binding.path else None
                if not origins or any(elements_of(origin) is None for origin in origins):
                    self.note(Trait.UNSEEN, facts, name)
                for origin in origins or ():
                    if elements_of(origin) is not None:
                        self.called(origin, crosses=False)
            elif binding.how in (Bound.ASSIGN, Bound.PARAMETER, Bound.IMPORT):
                self.called_from(facts, name, within, crosses=False)


def _library_name(facts: Facts, expression: ast.expr) -> str | None:
    """The dotted name of something that a library or Python itself defines, None for what is the project's or not known."""
    root = expression
    while isinstance(root, ast.Attribute):
        root = root.value
    name = facts.names.qualified(expression)
    if name is None and isinstance(root, ast.Name):
        name = _one_of_two_libraries(facts, expression, root)
    if name is None or name.startswith(".") or not isinstance(root, ast.Name):
        return None
    return None if any(_is_project_import(facts, binding) for binding in facts.names.bindings(root)) else name


def _one_of_two_libraries(facts: Facts, expression: ast.expr, root: ast.Name) -> str | None:
    """The dotted name of something that is imported from one library or, where that is missing, from another."""
    bindings = facts.names.bindings(root)
    if not bindings or any(binding.how is not Bound.IMPORT for binding in bindings):
        return None
    return bindings[-1].origin + (dotted(expression) or "")[len(root.id) :]


def _is_project_import(facts: Facts, binding: Binding) -> bool:
    node, project = binding.node, facts.project
    if isinstance(node, ast.ImportFrom):
        whole = ".".join(part for part in (node.module, binding.origin.rpartition(".")[2]) if part)
        return any(project.module(name, facts.path, node.level) is not None for name in (node.module or "", whole))
    return isinstance(node, ast.Import) and project.module(binding.origin, facts.path) is not None


def _is_project_variable(facts: Facts, binding: Binding, name: ast.Name) -> bool:
    """Whether an import brings a variable of the project, rather than a function, a class or a module."""
    brought = isinstance(binding.node, ast.ImportFrom) and _is_project_import(facts, binding)
    return brought and facts.names.definition(name) is None and facts.names.module_of(name) is None


def _is_own(facts: Facts, expression: ast.expr) -> bool:
    """Whether an expression is the object, or in a class method the class, whose method it stands in."""
    if not isinstance(expression, ast.Name):
        return False
    function = facts.tree.function(expression)
    if function is None or facts.is_self(expression):
        return function is not None
    of_class = any(isinstance(item, ast.Name) and item.id == "classmethod" for item in function.decorator_list)
    return of_class and bool(function.args.args) and function.args.args[0].arg == expression.id


def _rebinds(facts: Facts, declared: ast.Global | ast.Nonlocal, name: str) -> bool:
    """Whether the function that declares a variable to be an outer one binds it, rather than only reading it."""
    found = facts.names.lookup(name, declared)
    function = facts.tree.function(declared)
    return found is None or any(facts.tree.function(binding.node) is function for binding in found[1])


def _is_made_above(facts: Facts, kept: ast.expr) -> bool:
    """Whether the method makes an attribute anew before it changes it: ``self.steps = []`` at its top, ``self.steps.append(x)``."""
    function = facts.tree.function(kept)
    if not isinstance(kept, ast.Attribute) or function is None:
        return False
    made = [target for item in function.body if isinstance(item, ast.Assign) and item.lineno < kept.lineno for target in item.targets]
    return any(isinstance(target, ast.Attribute) and dotted(target) == dotted(kept) for target in made)


def _is_in_index(facts: Facts, node: ast.AST) -> bool:
    """Whether a node is a part of an index, where arithmetic is about places rather than values."""
    inner = node
    for outer in facts.tree.ancestors(node):
        if isinstance(outer, ast.Subscript) and inner is outer.slice:
            return True
        if isinstance(outer, ast.stmt):
            return False
        inner = outer
    return False


def instances_of(origin: Origin) -> tuple[Instance, ...]:
    """The objects of the project's classes that an origin may make: several where a dictionary chooses the class."""
    if not isinstance(origin.node, ast.Call):
        return ()
    return tuple(Instance(definition, origin) for definition in _classes(origin.facts, origin.node.func, origin.within))


def _classes(facts: Facts, called: ast.expr, within: Instance | None) -> list[Definition]:
    """The classes of the project that an expression may name."""
    definition = facts.names.definition(called)
    if definition is not None:
        return [definition] if isinstance(definition.node, ast.ClassDef) else []
    if isinstance(called, ast.Subscript):
        held = [(origin, origin.node) for origin in origins_of(facts, called.value, within) or () if isinstance(origin.node, ast.Dict)]
        return [found for origin, node in held for value in node.values for found in _classes(origin.facts, value, origin.within)]
    own = isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and facts.is_self(called.value)
    if own or (isinstance(called, ast.Name) and facts.names.qualified(called) is None):
        origins = origins_of(facts, called, within) or ()
        return [found for origin in origins if origin.node is not called for found in _classes(origin.facts, origin.node, origin.within)]
    return []


def elements_of(origin: Origin) -> tuple[Origin, ...] | None:
    """The items of a list or tuple, those that are added to its variable later included; None for anything else."""
    facts, node = origin.facts, origin.node
    if not isinstance(node, (ast.List, ast.Tuple)):
        return None
    items: list[ast.expr] = list(node.elts)
    statement = facts.tree.parent(node)
    for target in statement.targets if isinstance(statement, ast.Assign) else ():
        if isinstance(target, ast.Name):
            items += _added_later(facts, target)
        elif isinstance(target, ast.Attribute) and origin.within is not None:
            items += [value for _, value in origin.within.held(target.attr) if value is not node]
    return tuple(Origin(facts, item, origin.within) for item in items)


def objects_of(facts: Facts, expression: ast.expr, within: Instance | None) -> tuple[Instance, ...] | None:
    """The objects of the project's classes that an expression may be; empty for data and objects of libraries, None if unknown."""
    if isinstance(expression, ast.Name) and facts.is_self(expression):
        return (within,) if within is not None else None
    definition = facts.names.definition(expression) if isinstance(expression, (ast.Name, ast.Attribute)) else None
    if definition is not None and isinstance(definition.node, ast.ClassDef):
        return (Instance(definition, Origin(facts, expression)),)  # the class itself, asked for a static method
    if isinstance(expression, ast.Attribute) and not (isinstance(expression.value, ast.Name) and facts.is_self(expression.value)):
        base = objects_of(facts, expression.value, within)
        if not base:
            return base
        held = [instance.attribute(expression.attr) for instance in base]
        origins = None if None in held else tuple(origin for each in held for origin in each or ())
    else:
        origins = origins_of(facts, expression, within)
    if not origins or any(isinstance(origin.node, ast.Attribute) for origin in origins):
        return None
    return tuple(instance for origin in origins for instance in instances_of(origin))


def _added_later(facts: Facts, variable: ast.Name) -> list[ast.expr]:
    """What is added to the list that a variable holds."""
    found: list[ast.expr] = []
    for use in facts.names.uses(variable):
        parent = facts.tree.parent(use)
        call = facts.tree.parent(parent) if parent is not None else None
        if isinstance(parent, ast.AugAssign) and parent.target is use:
            found += parent.value.elts if isinstance(parent.value, (ast.List, ast.Tuple)) else [parent.value]
        elif isinstance(parent, ast.Attribute) and isinstance(call, ast.Call) and parent.attr in ("append", "insert", "extend"):
            found += [item for given in call.args for item in (given.elts if isinstance(given, (ast.List, ast.Tuple)) else [given])]
    return found


def _is_importable(definition: Definition) -> bool:
    """Whether a new process finds a function or class by its module and name."""
    facts, node = definition.facts, definition.node
    scope = facts.names.scope(node)
    while isinstance(scope.node, ast.ClassDef) and scope.parent is not None:
        scope = scope.parent
    return scope is facts.names.module and not facts.program.is_guarded(node)


def _is_set_before_use(instance: Instance, facts: Facts, target: ast.Attribute) -> bool:
    """Whether code for one sample sets an attribute of its object before anything reads it, so that nothing is remembered.

    Either it is set where it is found missing, which each process does once for itself, or at the top of a method and
    read only behind that.
    """
    tree, name = facts.tree, target.attr
    statement, function = tree.statement(target), tree.function(target)
    outer = tree.parent(statement)
    if isinstance(outer, ast.If) and any(
        (isinstance(node, ast.Attribute) and node.attr == name) or (isinstance(node, ast.Constant) and node.value == name)
        for node in walk(outer.test)
    ):
        return True
    if function is None or statement not in function.body:
        return False
    for other in facts.program.everywhere:
        for use in other.tree.attributes.get(name, ()):
            if isinstance(use.ctx, ast.Load) and use is not target:
                own = any(other is d.facts and other.tree.method_class(use) is d.node for d in instance.classes)
                if not own and (_is_own(other, use.value) or other.names.qualified(use) is not None):
                    continue  # another object's, or something of a module
                same = own and other.tree.function(use) is function
                if not own or (same and use.lineno <= (statement.end_lineno or statement.lineno)):
                    return False
    return True
