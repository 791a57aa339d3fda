"""What a program does to the outside: what it prints, writes, logs, downloads and asks.

With one process per GPU everything outside happens once per process, so each of these places matters.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.calls import argument, is_constant, receiver
from torchfix.facts.code.names import Definition
from torchfix.facts.code.tree import Function, walk_here
from torchfix.facts.training.models import derives

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


class Effects:
    """Questions about the effects of one file's code."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._functions: dict[int, frozenset[Effect]] = {}
        self._own: dict[int, Effect | None] = {}

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

    # Places ---------------------------------------------------------------------------------------------------

    def here(self, call: ast.Call) -> frozenset[Effect]:
        """What a call does that is not done by a statement of this file's own main line: by itself, or in other code."""
        own = self.own(call)
        found = {own} if own is not None else set()
        for facts, function in called(self._facts, call):
            if self.is_elsewhere(facts, function):
                found |= facts.effects.of_function(function)
        return frozenset(found)

    def is_elsewhere(self, facts: Facts, function: Function) -> bool:
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


def _opens_for_writing(call: ast.Call, position: int = 1) -> bool:
    mode = argument(call, "mode", position)
    return mode is not None and not (isinstance(mode, ast.Constant) and isinstance(mode.value, str) and not set(mode.value) & set("wax+"))


def _may_exist(call: ast.Call) -> bool:
    allowed = argument(call, "exist_ok", 2)
    return allowed is not None and not is_constant(allowed, False)
