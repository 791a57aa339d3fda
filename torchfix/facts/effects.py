"""What a program does to the outside: what it prints, writes, logs, downloads and asks, and which statements do only that.

With one process per GPU everything outside happens once per process, so each of these places matters. A statement that
only reports may be left to one process; one that also computes something may not.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchfix.facts.callees import called
from torchfix.facts.calls import argument, is_constant, receiver
from torchfix.facts.models import derives
from torchfix.facts.names import Definition
from torchfix.facts.tree import FUNCTIONS, Function, walk_here

if TYPE_CHECKING:
    from torchfix.facts import Facts


class Effect(enum.Enum):
    """What a call does to the outside."""

    PRINT = "prints or draws"
    WRITE = "writes a file"
    LOG = "writes to a log"
    OPEN = "opens a file or a log for writing"
    BAR = "draws a progress bar"
    DOWNLOAD = "downloads or prepares files"
    SHELL = "runs a command"
    ASK = "waits for somebody at the keyboard"


REPORTS = frozenset({Effect.PRINT, Effect.WRITE, Effect.LOG})
"""The effects that one process may have for all."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LEVELS = _words("debug info warning warn error critical exception log")
_PRINTS = _words("builtins.print pprint.pprint pprint.pp sys.stdout.write sys.stderr.write tqdm.tqdm.write tqdm.write")
_BARS = _words(
    "tqdm.tqdm tqdm.trange tqdm.auto.tqdm tqdm.auto.trange tqdm.notebook.tqdm tqdm.notebook.trange tqdm.tqdm_notebook tqdm.std.tqdm"
)
_WRITES = _words(
    """torch.save torch.jit.save torch.onnx.export numpy.save numpy.savez numpy.savez_compressed numpy.savetxt json.dump pickle.dump
    yaml.dump yaml.safe_dump joblib.dump dill.dump shutil.copy shutil.copy2 shutil.copyfile shutil.copytree shutil.move shutil.rmtree
    os.remove os.rename os.replace os.unlink os.mkdir os.makedirs os.rmdir os.removedirs os.symlink os.link cv2.imwrite imageio.imwrite
    imageio.imsave imageio.mimsave torchvision.utils.save_image torchaudio.save soundfile.write scipy.io.savemat scipy.io.wavfile.write
    scipy.misc.imsave matplotlib.pyplot.savefig matplotlib.pyplot.show matplotlib.pyplot.imsave safetensors.torch.save_file
    torch.utils.model_zoo.save"""
)
_WRITING_METHODS = _words("""savefig to_csv to_json to_pickle to_excel to_parquet write_text write_bytes save_pretrained imwrite
    mkdir touch unlink rmdir export_chrome_trace""")
_LOGGERS = _words(
    """torch.utils.tensorboard.SummaryWriter torch.utils.tensorboard.writer.SummaryWriter tensorboardX.SummaryWriter visdom.Visdom
    csv.writer csv.DictWriter logging.FileHandler"""
)
_LOGGING_METHODS = frozenset(
    """add_scalar add_scalars add_image add_images add_histogram add_text add_graph add_figure add_hparams add_embedding add_video
    add_audio add_pr_curve add_custom_scalars log_metric log_metrics log_artifact writerow writerows writeheader writelines
    addHandler""".split()
)
# A method with such a name, called for nothing but its effect on an object of a library, is taken to write.
_SAVING = ("save", "write", "dump", "export")
_TRACKERS = ("wandb.", "mlflow.", "comet_ml.", "neptune.", "swanlab.", "clearml.", "aim.", "trackio.", "nsml.")
_DOWNLOADS = _words("""urllib.request.urlretrieve torch.hub.load torch.hub.download_url_to_file torchvision.datasets.utils.download_url
    torchvision.datasets.utils.download_and_extract_archive wget.download gdown.download gdown.cached_download nltk.download
    kagglehub.dataset_download shutil.unpack_archive""")
_SHELL = ("subprocess.", "os.system", "os.popen", "os.exec", "os.spawn")
_ASKS = _words("builtins.input builtins.breakpoint pdb.set_trace ipdb.set_trace code.interact")

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


class Effects:
    """Questions about the effects of one file's code."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._functions: dict[int, frozenset[Effect]] = {}
        self._own: dict[int, Effect | None] = {}
        self._computing: dict[tuple[int, bool], bool] = {}

    # Calls ----------------------------------------------------------------------------------------------------

    def of(self, call: ast.Call) -> frozenset[Effect]:
        """Everything that a call does to the outside, through the functions of the project that it runs."""
        own = self.own(call)
        found = {own} if own is not None else set()
        for facts, function in called(self._facts, call):
            found |= facts.effects.of_function(function)
        return frozenset(found)

    def of_function(self, function: Function) -> frozenset[Effect]:
        """Everything that a function does to the outside, itself or through others of the project."""
        key = id(function)
        if key not in self._functions:
            self._functions[key] = frozenset()  # a function that calls itself adds nothing new
            calls = (node for statement in function.body for node in walk_here(statement) if isinstance(node, ast.Call))
            self._functions[key] = frozenset(effect for call in calls for effect in self.of(call))
        return self._functions[key]

    def own(self, call: ast.Call) -> Effect | None:
        """What a call does to the outside by itself; None for nothing, or for nothing that this module knows of."""
        key = id(call)
        if key not in self._own:
            self._own[key] = None  # ``x = x.f()``: the circle adds nothing new
            self._own[key] = self._judge(call)
        return self._own[key]

    def _judge(self, call: ast.Call) -> Effect | None:
        meaning = self._facts.calls.meaning(call) or ""
        if meaning == "logging.basicConfig" and argument(call, "filename") is not None:
            return Effect.WRITE
        if meaning in _PRINTS or (meaning.startswith("logging.") and meaning.rpartition(".")[2] in _LEVELS):
            return Effect.PRINT
        if meaning in _BARS:
            return Effect.BAR
        if meaning in _ASKS:
            return Effect.ASK
        if meaning.startswith(_SHELL):
            return Effect.SHELL
        if meaning.startswith(_TRACKERS):
            return Effect.LOG
        if self._downloads(call, meaning):
            return Effect.DOWNLOAD
        if meaning in _LOGGERS or (meaning in ("builtins.open", "io.open", "codecs.open", "gzip.open") and _opens_for_writing(call)):
            return Effect.OPEN
        if meaning in ("os.makedirs", "os.mkdir") and _may_exist(call):
            return None
        if meaning in ("yaml.dump", "yaml.safe_dump") and argument(call, "stream", 1) is None:
            return None
        if meaning in _WRITES:
            return Effect.WRITE
        return Effect.PRINT if meaning.startswith("matplotlib.pyplot.") else self._of_method(call, meaning)

    def _downloads(self, call: ast.Call, meaning: str) -> bool:
        asked = argument(call, "download")
        if asked is not None and not is_constant(asked, False):
            return True
        return meaning in _DOWNLOADS or (isinstance(call.func, ast.Attribute) and call.func.attr == "extractall")

    def _of_method(self, call: ast.Call, meaning: str) -> Effect | None:
        source = receiver(call)
        if source is None or not isinstance(call.func, ast.Attribute) or meaning.startswith(("torch.", "numpy.")):
            return None
        name = call.func.attr
        if name in _LOGGING_METHODS:
            return Effect.LOG
        if name == "open" and not meaning and _opens_for_writing(call, 0):
            return Effect.OPEN
        if name in _WRITING_METHODS and next(called(self._facts, call), None) is None:
            return None if name == "mkdir" and _may_exist(call) else Effect.WRITE
        made = [value for value in self._facts.values.of(source) or () if isinstance(value.node, ast.Call) and not value.path]
        meanings = {value.facts.calls.meaning(value.node) for value in made if isinstance(value.node, ast.Call)}
        if "logging.getLogger" in meanings:
            return Effect.PRINT if name in _LEVELS else None
        if any(self._is_bar(meaning) for meaning in meanings):
            return Effect.PRINT if name == "write" else None
        if any(isinstance(value.node, ast.Call) and value.facts.effects.own(value.node) is Effect.OPEN for value in made):
            return Effect.LOG
        if any((meaning or "").startswith(_TRACKERS) for meaning in meanings):
            return Effect.LOG
        stated = not meaning and isinstance(self._facts.tree.parent(call), ast.Expr) and next(called(self._facts, call), None) is None
        return Effect.WRITE if stated and name.startswith(_SAVING) else None

    @staticmethod
    def _is_bar(meaning: str | None) -> bool:
        return meaning in _BARS

    # What only computes ---------------------------------------------------------------------------------------

    def is_pure(self, node: ast.AST) -> bool:
        """Whether an expression surely only computes: it changes nothing, draws no random number and runs no network."""
        for item in ast.walk(node):
            if isinstance(item, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)):
                return False
            if isinstance(item, ast.Call) and not self._is_pure_call(item):
                return False
        return True

    def _is_pure_call(self, call: ast.Call) -> bool:
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
        functions = list(called(self._facts, call))
        if functions:
            return all(facts.effects._only_computes(function) for facts, function in functions)
        return isinstance(call.func, ast.Attribute) and call.func.attr in _PURE_METHODS

    def _only_computes(self, function: Function, reports: bool = False) -> bool:
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
        if reports and self.own(call) in (*REPORTS, Effect.OPEN):
            return True
        functions = list(called(self._facts, call))
        if functions:
            return all(facts.effects._only_computes(inner, reports) for facts, inner in functions)
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

    # Statements that only report ------------------------------------------------------------------------------

    def only_reports(self, statement: ast.stmt) -> bool:
        """Whether a statement prints, writes or logs and surely does nothing else that later code could notice."""
        if isinstance(statement, ast.Expr):
            return isinstance(statement.value, ast.Call) and self._reports(statement.value)
        if isinstance(statement, ast.If):
            branches = [*statement.body, *statement.orelse]
            return self.is_pure(statement.test) and all(self.only_reports(item) for item in branches)
        if isinstance(statement, (ast.For, ast.With)):
            return self._block_reports(statement)
        return False

    def _reports(self, call: ast.Call) -> bool:
        """Whether a call does nothing but print, write or log, its arguments only computed."""
        if not all(self._is_argument(part) for part in (*call.args, *(item.value for item in call.keywords))):
            return False
        if self.own(call) in REPORTS:
            source = receiver(call)
            return source is None or self.is_pure(source)
        elsewhere = [item for item in called(self._facts, call) if self._is_elsewhere(*item)]
        effects = self.here(call)
        alone = bool(elsewhere) and bool(effects & REPORTS) and effects <= REPORTS | {Effect.OPEN}
        return alone and all(facts.effects._only_computes(function, reports=True) for facts, function in elsewhere)

    def _is_argument(self, part: ast.expr) -> bool:
        """Whether a report may be given an expression: one that only computes, or opens the file to write."""
        if isinstance(part, ast.Call) and self.own(part) is Effect.OPEN:
            return all(self.is_pure(item) for item in (*part.args, *(keyword.value for keyword in part.keywords)))
        return self.is_pure(part)

    def _block_reports(self, block: ast.For | ast.With) -> bool:
        """A loop that prints or writes, or a file that is opened, written and closed; no name of it is read behind it."""
        if not (self._opens_files(block) if isinstance(block, ast.With) else self._goes_over_data(block)):
            return False
        speaking = [self.only_reports(item) or self._writes_to_handle(item) for item in block.body]
        quiet = (item for item, speaks in zip(block.body, speaking) if not speaks)
        return any(speaking) and all(self._is_scratch(item) for item in quiet) and self._leaves_no_name(block)

    def _opens_files(self, block: ast.With) -> bool:
        opened = [item.context_expr for item in block.items]
        return all(isinstance(item, ast.Call) and self.own(item) is Effect.OPEN and all(map(self.is_pure, item.args)) for item in opened)

    def _goes_over_data(self, block: ast.For) -> bool:
        """Whether a loop only reads what it goes over; the batches of a loader are made anew."""
        return (
            not block.orelse
            and self.is_pure(block.iter)
            and self._facts.loaders.of(block.iter) is None
            and block not in self._facts.loaders.by_loop
        )

    def _writes_to_handle(self, statement: ast.stmt) -> bool:
        """``f.write(...)`` on an open file."""
        call = statement.value if isinstance(statement, ast.Expr) else None
        return (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and self.own(call) is Effect.LOG
            and all(self.is_pure(part) for part in (*call.args, *(item.value for item in call.keywords)))
        )

    def _is_scratch(self, statement: ast.stmt) -> bool:
        """Whether a statement only computes a value for a name."""
        names = isinstance(statement, ast.Assign) and all(isinstance(item, ast.Name) for item in statement.targets)
        return names and isinstance(statement, ast.Assign) and self.is_pure(statement.value)

    def _leaves_no_name(self, block: ast.stmt) -> bool:
        tree, flow = self._facts.tree, self._facts.flow
        bound = [node for node in walk_here(block) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        outside = {
            use
            for name in bound
            for use in self._facts.names.uses(name)
            if isinstance(use.ctx, ast.Load) and not tree.is_within(use, block)
        }
        return not any(tree.is_within(binding.node, block) for use in outside for binding in flow.reaching(use))

    # Places ---------------------------------------------------------------------------------------------------

    def here(self, call: ast.Call) -> frozenset[Effect]:
        """What a call does that is not done by a statement of this file's own main line: by itself, or in other code."""
        own = self.own(call)
        found = {own} if own is not None else set()
        for facts, function in called(self._facts, call):
            if self._is_elsewhere(facts, function):
                found |= facts.effects.of_function(function)
        return frozenset(found)

    def _is_elsewhere(self, facts: Facts, function: Function) -> bool:
        """Whether a function is out of reach of this file's own statements."""
        return facts is not self._facts or not self.in_main_line(function.body[0])

    def calls(self) -> Iterator[tuple[ast.Call, frozenset[Effect]]]:
        """The calls of the file's main line that do something to the outside, with what :meth:`here` says of them.

        The main line is what runs in the training process: not the methods of datasets and networks.
        """
        for calls in self._facts.tree.calls.values():
            for call in calls:
                effects = self.here(call)
                if effects and self.in_main_line(call):
                    yield call, effects

    def in_main_line(self, node: ast.AST) -> bool:
        """Whether a node belongs to the script's own course: to no dataset, network or sampler, and to no worker."""
        owner = self._facts.tree.method_class(node)
        return not self._facts.workers.run(node) and (owner is None or not self._is_data_or_network(owner))

    def _is_data_or_network(self, owner: ast.ClassDef) -> bool:
        return derives(Definition(self._facts, owner), ("torch.nn.", "torch.utils.data.", "torchvision."))


def _root(node: ast.expr) -> ast.Name | None:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node if isinstance(node, ast.Name) else None


def _opens_for_writing(call: ast.Call, position: int = 1) -> bool:
    mode = argument(call, "mode", position)
    return mode is not None and not (isinstance(mode, ast.Constant) and isinstance(mode.value, str) and not set(mode.value) & set("wax+"))


def _may_exist(call: ast.Call) -> bool:
    allowed = argument(call, "exist_ok", 2)
    return allowed is not None and not is_constant(allowed, False)
