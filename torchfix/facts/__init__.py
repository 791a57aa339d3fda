"""The card of one file: what it holds, read once and shared by all transforms, each entry computed when first asked."""

from __future__ import annotations

import ast
from functools import cached_property

from torchfix.facts.code.callers import Callers
from torchfix.facts.code.calls import Calls
from torchfix.facts.code.classes import Classes
from torchfix.facts.code.flow import Flow
from torchfix.facts.code.kinds import Kinds
from torchfix.facts.code.names import Names
from torchfix.facts.code.numbers import Numbers
from torchfix.facts.code.options import Options
from torchfix.facts.code.purity import Purity
from torchfix.facts.code.reach import Reach
from torchfix.facts.code.references import References
from torchfix.facts.code.stability import Stability
from torchfix.facts.code.tree import FUNCTIONS, Function, Tree
from torchfix.facts.code.values import Values
from torchfix.facts.code.writes import Writes
from torchfix.facts.data.batches import Batches
from torchfix.facts.data.datasets import Datasets
from torchfix.facts.data.loaders import Loaders
from torchfix.facts.data.workers import Workers
from torchfix.facts.half_precision.candidates import Candidates
from torchfix.facts.half_precision.delegations import Delegations
from torchfix.facts.half_precision.forwards import Forwards
from torchfix.facts.half_precision.hazards import Hazards
from torchfix.facts.half_precision.precision import Precision
from torchfix.facts.metrics.accumulators import Accumulators
from torchfix.facts.metrics.cadence import Cadence
from torchfix.facts.metrics.deferral import Deferral
from torchfix.facts.metrics.displays import Displays
from torchfix.facts.metrics.gains import Gains
from torchfix.facts.metrics.gathered import Gatherings
from torchfix.facts.metrics.purposes import Purposes
from torchfix.facts.metrics.readings import Readings
from torchfix.facts.metrics.savings import Savings
from torchfix.facts.metrics.scalars import Scalars
from torchfix.facts.processes.distribution import Distribution
from torchfix.facts.processes.lockstep import Lockstep
from torchfix.facts.processes.replicas import Replicas
from torchfix.facts.processes.shares import Shares
from torchfix.facts.project.effects import Effects
from torchfix.facts.project.programs import Program
from torchfix.facts.project.project import Project
from torchfix.facts.project.repetition import Repetition
from torchfix.facts.project.reports import Reports
from torchfix.facts.project.scripts import Script
from torchfix.facts.project.startup import Startup
from torchfix.facts.tensors.arrays import Arrays
from torchfix.facts.tensors.constructors import Constructors
from torchfix.facts.tensors.creations import Creations
from torchfix.facts.tensors.destinations import Destinations
from torchfix.facts.tensors.detachments import Detachments
from torchfix.facts.tensors.devices import Devices
from torchfix.facts.tensors.placement import Placement
from torchfix.facts.tensors.residence import Residences
from torchfix.facts.tensors.tensors import Tensors
from torchfix.facts.training.autograd import Autograd
from torchfix.facts.training.clearing import Clearing
from torchfix.facts.training.clears import Clears
from torchfix.facts.training.companions import Companions
from torchfix.facts.training.cycles import Cycles
from torchfix.facts.training.evaluations import Evaluations
from torchfix.facts.training.gradient_needs import GradientNeeds
from torchfix.facts.training.gradients import Gradients
from torchfix.facts.training.graphs import Graphs
from torchfix.facts.training.loops import Loops
from torchfix.facts.training.models import Models
from torchfix.facts.training.modes import Modes
from torchfix.facts.training.optimizers import Optimizers
from torchfix.facts.training.passes import Passes
from torchfix.facts.training.recipients import Recipients
from torchfix.facts.training.reductions import Reductions
from torchfix.facts.training.regions import GRADIENT_SWITCHES, Regions
from torchfix.facts.training.relays import Relays
from torchfix.facts.training.remembered import Remembered
from torchfix.facts.training.states import States
from torchfix.facts.training.targets import Targets
from torchfix.facts.training.updates import Updates
from torchfix.facts.training.wrapped_optimizers import WrappedOptimizers
from torchfix.source import SourceFile


class Facts:
    """What one file says.

    Args:
        source: the file.
        project: the user's other files and declarations.
    """

    def __init__(self, source: SourceFile, project: Project) -> None:
        self.source = source
        self.project = project
        self.path = project.relative(source.path)
        self._selves: dict[ast.Name, bool] = {}

    @cached_property
    def tree(self) -> Tree:
        """Nodes, parents and indexes."""
        return self.project.tree(self.source.tree)

    @cached_property
    def names(self) -> Names:
        """What names mean."""
        return Names(self)

    @cached_property
    def calls(self) -> Calls:
        """Calls by meaning."""
        return Calls(self)

    @cached_property
    def classes(self) -> Classes:
        """The classes of the file, and their heirs."""
        return Classes(self)

    @cached_property
    def flow(self) -> Flow:
        """Which bindings reach a use."""
        return Flow(self)

    @cached_property
    def values(self) -> Values:
        """Where values come from."""
        return Values(self)

    @cached_property
    def options(self) -> Options:
        """The command line."""
        return Options(self)

    @cached_property
    def kinds(self) -> Kinds:
        """Tensors, dtypes and whole numbers."""
        return Kinds(self)

    @cached_property
    def numbers(self) -> Numbers:
        """Fractions, whole numbers and truths."""
        return Numbers(self)

    @cached_property
    def scalars(self) -> Scalars:
        """Numbers that the host reads out of tensors."""
        return Scalars(self)

    @cached_property
    def accumulators(self) -> Accumulators:
        """Running numbers to which loops add what they read from the device."""
        return Accumulators(self)

    @cached_property
    def gatherings(self) -> Gatherings:
        """Lists of numbers that loops read from the device."""
        return Gatherings(self)

    @cached_property
    def deferral(self) -> Deferral:
        """Which of these numbers can be read later."""
        return Deferral(self)

    @cached_property
    def gains(self) -> Gains:
        """What reading these numbers later gains."""
        return Gains(self)

    @cached_property
    def displays(self) -> Displays:
        """Progress displays."""
        return Displays(self)

    @cached_property
    def writes(self) -> Writes:
        """Writes in place."""
        return Writes(self)

    @cached_property
    def models(self) -> Models:
        """Networks."""
        return Models(self)

    @cached_property
    def loaders(self) -> Loaders:
        """Data loaders."""
        return Loaders(self)

    @cached_property
    def datasets(self) -> Datasets:
        """What the code behind data loaders does."""
        return Datasets(self)

    @cached_property
    def optimizers(self) -> Optimizers:
        """Optimizers and what they step."""
        return Optimizers(self)

    @cached_property
    def wrapped_optimizers(self) -> WrappedOptimizers:
        """Optimizers inside objects of the project."""
        return WrappedOptimizers(self)

    @cached_property
    def devices(self) -> Devices:
        """Device expressions and copies."""
        return Devices(self)

    @cached_property
    def arrays(self) -> Arrays:
        """Numpy arrays."""
        return Arrays(self)

    @cached_property
    def constructors(self) -> Constructors:
        """Tensors made by constructors from before ``dtype=``."""
        return Constructors(self)

    @cached_property
    def creations(self) -> Creations:
        """Tensors that are made and then moved."""
        return Creations(self)

    @cached_property
    def states(self) -> States:
        """Where states are saved and loaded."""
        return States(self)

    @cached_property
    def targets(self) -> Targets:
        """Where training loops run."""
        return Targets(self)

    @cached_property
    def destinations(self) -> Destinations:
        """Where moves go."""
        return Destinations(self)

    @cached_property
    def batches(self) -> Batches:
        """Batches in host memory, and their copies."""
        return Batches(self)

    @cached_property
    def workers(self) -> Workers:
        """What runs in the loaders' workers."""
        return Workers(self)

    @cached_property
    def loops(self) -> Loops:
        """Training and evaluation loops."""
        return Loops(self)

    @cached_property
    def calling(self) -> Callers:
        """Who calls the functions of the file."""
        return Callers(self)

    @cached_property
    def reach(self) -> Reach:
        """What runs when some statements run."""
        return Reach(self)

    @cached_property
    def modes(self) -> Modes:
        """The modes that networks are in."""
        return Modes(self)

    @cached_property
    def candidates(self) -> Candidates:
        """Training loops that could compute in half precision."""
        return Candidates(self)

    @cached_property
    def companions(self) -> Companions:
        """Where companions of objects can be made."""
        return Companions(self)

    @cached_property
    def startup(self) -> Startup:
        """Where a script's program begins its work."""
        return Startup(self)

    @cached_property
    def cycles(self) -> Cycles:
        """How the gradients of training loops come and go."""
        return Cycles(self)

    @cached_property
    def relays(self) -> Relays:
        """Backward passes in functions that code which steps leaves them to."""
        return Relays(self)

    @cached_property
    def clears(self) -> Clears:
        """Where training loops clear gradients."""
        return Clears(self)

    @cached_property
    def recipients(self) -> Recipients:
        """Whose weights the gradients of losses reach."""
        return Recipients(self)

    @cached_property
    def updates(self) -> Updates:
        """How training loops update their parameters."""
        return Updates(self)

    @cached_property
    def forwards(self) -> Forwards:
        """The forward part of training loops."""
        return Forwards(self)

    @cached_property
    def delegations(self) -> Delegations:
        """Forward passes that training loops leave to functions."""
        return Delegations(self)

    @cached_property
    def autograd(self) -> Autograd:
        """Code that uses autograd itself."""
        return Autograd(self)

    @cached_property
    def evaluations(self) -> Evaluations:
        """Evaluations that build a graph for nothing."""
        return Evaluations(self)

    @cached_property
    def passes(self) -> Passes:
        """Forward passes, and what becomes of what they compute."""
        return Passes(self)

    @cached_property
    def gradient_needs(self) -> GradientNeeds:
        """Whether statements need gradients."""
        return GradientNeeds(self)

    @cached_property
    def gradients(self) -> Gradients:
        """Where values go, and whether a gradient may flow back."""
        return Gradients(self)

    @cached_property
    def graphs(self) -> Graphs:
        """Which values carry a graph."""
        return Graphs(self)

    @cached_property
    def precision(self) -> Precision:
        """Which values autocast would make half precision."""
        return Precision(self)

    @cached_property
    def hazards(self) -> Hazards:
        """What half precision would break."""
        return Hazards(self)

    @cached_property
    def remembered(self) -> Remembered:
        """What outlives a forward pass beside its output."""
        return Remembered(self)

    @cached_property
    def references(self) -> References:
        """Uses of torch names, by what is done with them."""
        return References(self)

    @cached_property
    def regions(self) -> Regions:
        """What surrounds a place: no_grad, autocast, frameworks."""
        return Regions(self)

    @cached_property
    def program(self) -> Program:
        """The programs that the file belongs to."""
        return Program(self)

    @cached_property
    def script(self) -> Script:
        """The file as a script."""
        return Script(self)

    @cached_property
    def placement(self) -> Placement:
        """GPUs that are named by their number."""
        return Placement(self)

    @cached_property
    def replicas(self) -> Replicas:
        """Networks that are replicated over GPUs."""
        return Replicas(self)

    @cached_property
    def effects(self) -> Effects:
        """What is printed, written, logged and downloaded."""
        return Effects(self)

    @cached_property
    def purity(self) -> Purity:
        """What only computes."""
        return Purity(self)

    @cached_property
    def cadence(self) -> Cadence:
        """How often code runs in a training or evaluation loop."""
        return Cadence(self)

    @cached_property
    def residences(self) -> Residences:
        """Whether values live on the device or on the host."""
        return Residences(self)

    @cached_property
    def readings(self) -> Readings:
        """Where the host waits for the device, on each iteration."""
        return Readings(self)

    @cached_property
    def clearing(self) -> Clearing:
        """How gradients are cleared."""
        return Clearing(self)

    @cached_property
    def repetition(self) -> Repetition:
        """What runs for every batch."""
        return Repetition(self)

    @cached_property
    def purposes(self) -> Purposes:
        """What values that the host has read are for."""
        return Purposes(self)

    @cached_property
    def savings(self) -> Savings:
        """Readings of the device that can be saved."""
        return Savings(self)

    @cached_property
    def detachments(self) -> Detachments:
        """Tensors that are taken out of their graphs."""
        return Detachments(self)

    @cached_property
    def tensors(self) -> Tensors:
        """Which expressions surely are tensors."""
        return Tensors(self)

    @cached_property
    def stability(self) -> Stability:
        """Values that do not change between two places."""
        return Stability(self)

    @cached_property
    def reports(self) -> Reports:
        """Which statements only report."""
        return Reports(self)

    @cached_property
    def shares(self) -> Shares:
        """Training loops whose batches may be shared out."""
        return Shares(self)

    @cached_property
    def distribution(self) -> Distribution:
        """What it takes to train in one process per GPU."""
        return Distribution(self)

    @cached_property
    def lockstep(self) -> Lockstep:
        """What processes that train together have in common."""
        return Lockstep(self)

    @cached_property
    def reductions(self) -> Reductions:
        """How losses are reduced over the batch."""
        return Reductions(self)

    def is_self(self, name: ast.Name) -> bool:
        """Whether a name is the instance parameter of the method that it stands in."""
        if name not in self._selves:
            self._selves[name] = self._find_self(name)
        return self._selves[name]

    def _find_self(self, name: ast.Name) -> bool:
        found = self.names.lookup(name.id, name)
        if found is None or not isinstance(found[0].node, FUNCTIONS):
            return False
        function = found[0].node
        owner = self.tree.class_of(function)
        listed = [*function.args.posonlyargs, *function.args.args]
        static = any(isinstance(item, ast.Name) and item.id in ("staticmethod", "classmethod") for item in function.decorator_list)
        return owner is not None and bool(listed) and listed[0].arg == name.id and not static

    def is_decorated(self, function: Function) -> bool:
        """Whether a decorator may stand between a function and its callers; those that only switch gradients do not."""
        return not all(self.switches_gradients(item) for item in function.decorator_list)

    def switches_gradients(self, decorator: ast.expr) -> bool:
        """Whether a decorator only switches gradients on or off around a function."""
        return self.names.qualified(decorator.func if isinstance(decorator, ast.Call) else decorator) in GRADIENT_SWITCHES

    def own_method(self, call: ast.Call) -> Function | None:
        """The method of the same class that ``self.method(...)`` calls, None for anything else."""
        func = call.func
        if not (isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and self.is_self(func.value)):
            return None
        owner = self.tree.method_class(call)
        found = [item for item in (owner.body if owner else []) if isinstance(item, FUNCTIONS) and item.name == func.attr]
        return found[0] if len(found) == 1 else None

    def callers(self, function: Function) -> list[ast.Call] | None:
        """Every call of a function or method, None where one may be out of sight or stands in another file.

        A function that is handed on as a value or decorated has callers that are not seen.
        """
        found = self.callers_everywhere(function)
        if found is None or any(facts is not self for facts, _ in found):
            return None
        return [call for _, call in found]

    def callers_everywhere(self, function: Function) -> list[tuple[Facts, ast.Call]] | None:
        """As :meth:`callers`, with the calls in other files of the project, each with the facts of its file."""
        return self.calling.of(function)
