"""What only computes: expressions and functions that change nothing, draw nothing and run no network.

Known or not: a call that no table here knows, and that the project does not define, may do anything.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.tree import FUNCTIONS, Function, walk_here
from torchfix.facts.project.effects import REPORTS, Effect

if TYPE_CHECKING:
    from torchfix.facts import Facts


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Calls that leave everything as it was: they only compute. Draws of random numbers are none of them, and neither are metric
# objects' compute(), which may wait for other processes.
_PURE_MODULES = (
    "math.",
    "time.",
    "datetime.",
    "os.path.",
    "statistics.",
    "operator.",
    "string.",
    "textwrap.",
    "platform.",
    "sys.getsizeof",
)
_PURE = _words(
    """builtins.len builtins.str builtins.int builtins.float builtins.bool builtins.repr builtins.format builtins.round builtins.abs
    builtins.min builtins.max builtins.sum builtins.sorted builtins.zip builtins.list builtins.tuple builtins.dict builtins.set
    builtins.range builtins.enumerate builtins.isinstance builtins.type builtins.any builtins.all builtins.reversed builtins.vars
    builtins.getattr builtins.hasattr builtins.id builtins.pow builtins.divmod builtins.chr builtins.ord builtins.slice
    collections.Counter collections.OrderedDict itertools.chain itertools.zip_longest json.dumps pprint.pformat copy.copy copy.deepcopy
    torch.is_tensor torch.get_num_threads torch.utils.data.get_worker_info os.getcwd os.getpid os.cpu_count os.listdir pathlib.Path"""
)
_TORCH_DRAWS = _words(
    """rand randn randint randperm rand_like randn_like randint_like bernoulli multinomial normal poisson seed manual_seed dropout
    save load set_rng_state set_default_dtype set_num_threads use_deterministic_algorithms compile empty_cache"""
)
_PURE_METHODS = frozenset(
    """format join split strip rstrip lstrip replace lower upper title capitalize ljust rjust center zfill startswith endswith count index
    encode decode items keys values get copy strftime isoformat total_seconds timestamp date time elapsed_time
    item tolist numpy cpu detach size dim numel mean sum std var min max argmax argmin median norm abs sqrt exp log round float int long
    double half bool type view reshape flatten squeeze unsqueeze permute transpose t eq ne gt lt ge le any all topk clone contiguous
    parameters named_parameters state_dict children named_children modules named_modules get_last_lr get_lr element_size is_contiguous
    astype dot nonzero unbind expand softmax sigmoid log_softmax clamp clip exists is_file is_dir absolute resolve as_posix with_suffix
    with_name most_common diag trace nelement diagonal""".split()
)


class Purity:
    """Questions about what the code of one file changes."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._computing: dict[tuple[int, bool], bool] = {}

    def is_pure(self, node: ast.AST) -> bool:
        """Whether an expression surely only computes: it changes nothing, draws no random number and runs no network."""
        for item in ast.walk(node):
            if isinstance(item, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)):
                return False
            if isinstance(item, ast.Call) and not self._is_pure_call(item):
                return False
        return True

    def _is_pure_call(self, call: ast.Call) -> bool:
        functions = list(called(self._facts, call))
        if functions:
            return all(facts.purity.only_computes(function) for facts, function in functions)
        meaning = self._facts.calls.meaning(call)
        if meaning is not None and not meaning.startswith("."):
            if meaning in _PURE or meaning.startswith(_PURE_MODULES):
                return meaning != "time.sleep"
            home, _, name = meaning.rpartition(".")
            if home in ("torch", "torch.nn.functional", "torch.linalg"):
                return name not in _TORCH_DRAWS and not name.endswith("_")
            if home == "torch.cuda":
                return name.startswith(("memory_", "max_memory_", "get_device_", "device_count", "is_available", "current_device"))
            if home.startswith("numpy"):
                return not home.startswith("numpy.random") and name not in ("save", "savez", "savetxt")
            return home == "matplotlib.pyplot"
        return isinstance(call.func, ast.Attribute) and call.func.attr in _PURE_METHODS

    def only_computes(self, function: Function, reports: bool = False) -> bool:
        """Whether a function changes nothing outside its own variables, apart from ``self`` of a constructor.

        Args:
            reports: whether it may print, write and log, and keep a log's own state in ``self``.
        """
        key = (id(function), reports)
        if key not in self._computing:
            self._computing[key] = True  # a function that calls itself adds nothing new
            nodes = (node for statement in function.body for node in walk_here(statement))
            self._computing[key] = all(self._keeps_to_itself(node, function, reports) for node in nodes)
        return self._computing[key]

    def _keeps_to_itself(self, node: ast.AST, function: Function, reports: bool) -> bool:
        if isinstance(node, (ast.Global, ast.Nonlocal, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom, ast.Delete)):
            return False
        if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            root = _root(node)
            own = root is not None and self._facts.is_self(root) and (reports or function.name == "__init__")
            return own or (root is not None and self._is_local(root))
        return not isinstance(node, ast.Call) or self._is_harmless(node, reports)

    def _is_harmless(self, call: ast.Call, reports: bool) -> bool:
        if reports and self._facts.effects.own(call) in (*REPORTS, Effect.OPEN):
            return True
        functions = list(called(self._facts, call))
        if functions:
            return all(facts.purity.only_computes(inner, reports) for facts, inner in functions)
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("append", "extend", "update", "setdefault", "close", "flush"):
            root = _root(call.func)
            if root is not None and (self._is_local(root) or (reports and self._facts.is_self(root))):
                return True
        return self._is_pure_call(call)

    def _is_local(self, name: ast.Name) -> bool:
        """Whether a name is a variable that its function makes itself."""
        found = self._facts.names.lookup(name.id, name)
        if found is None or not isinstance(found[0].node, FUNCTIONS):
            return False
        return all(not isinstance(binding.node, ast.arg) for binding in found[1])


def _root(node: ast.expr) -> ast.Name | None:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node if isinstance(node, ast.Name) else None
