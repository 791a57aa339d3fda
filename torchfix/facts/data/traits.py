"""What one call or value does that matters where code runs: in the main process or in a worker.

Code of libraries is not read: it counts as fit for workers unless a table here says otherwise, and an object of a
library that is called for each sample as drawing random numbers unless a table says that it does not.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import argument, is_constant
from torchfix.facts.code.instances import Origin, origins_of
from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import FUNCTIONS, last_name
from torchfix.facts.training.models import is_module_name

if TYPE_CHECKING:
    from torchfix.facts import Facts


class Trait(enum.Enum):
    """What code does; the value says it in words."""

    UNSEEN = "is out of sight"
    UNSEEN_DATA = "hands on data whose making is out of sight"
    ITERABLE = "is iterated as a whole, so that every worker gives all of it"
    DEVICE = "may use an accelerator"
    HANDLE = "keeps an open file or connection"
    GENERATOR = "keeps a random generator of its own"
    STATE = "remembers something from one sample to the next"
    PROCESSES = "starts processes or threads"
    GRAPH = "calls a network or makes tensors with a gradient graph"
    LOCAL = "cannot be pickled"
    MAIN_ONLY = "reads a variable that only the main process sets"
    SPARSE = "makes sparse or nested tensors"
    RANDOM = "may draw random numbers"
    NUMPY = "draws NumPy's random numbers"
    OPENCV = "uses OpenCV"
    WORK = "does more than index memory"
    ASKS_WORKER = "asks which worker it runs in"
    VARIABLE = "reads a variable of its module"


@dataclass(frozen=True)
class Mark:
    """One place where code has a trait."""

    trait: Trait
    facts: Facts
    node: ast.AST

    def __hash__(self) -> int:
        return hash((self.trait, id(self.node)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mark) and self.trait is other.trait and self.node is other.node

    @property
    def place(self) -> str:
        """Where it stands: ``data.py:12``."""
        return f"{self.facts.path}:{getattr(self.node, 'lineno', 1)}"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_HANDLES = _words("""builtins.open io.open codecs.open gzip.open bz2.open lzma.open tarfile.open zipfile.ZipFile h5py.File lmdb.open
    lmdb.Environment sqlite3.connect tables.open_file netCDF4.Dataset rasterio.open openslide.OpenSlide cv2.VideoCapture
    decord.VideoReader av.open socket.socket redis.Redis pymongo.MongoClient psycopg2.connect PIL.Image.open""")
_PARTS_OF_HANDLES = _words("get begin cursor require_dataset")  # methods that give a part of an open file or connection
_GENERATORS = _words("numpy.random.RandomState numpy.random.default_rng numpy.random.Generator random.Random torch.Generator")
_NOT_PICKLED = _words("threading.Lock threading.RLock threading.Thread threading.local queue.Queue concurrent.futures.ThreadPoolExecutor")
# Their transforms keep generators from one sample to the next, of which forked workers get equal copies
# (albumentations-team/AlbumentationsX#266, aleju/imgaug#659).
_OWN_GENERATORS = ("albumentations.", "imgaug.", "monai.")
_PROCESS_MODULES = ("multiprocessing.", "torch.multiprocessing.", "subprocess.", "concurrent.futures.", "threading.", "joblib.")
_PROCESS_CALLS = _words("os.fork os.system torch.utils.data.DataLoader")
_SPARSE = _words("to_sparse to_sparse_csr sparse_coo_tensor sparse_csr_tensor nested_tensor as_nested_tensor")
_HARMLESS_CUDA = _words("torch.cuda.is_available torch.cuda.device_count torch.cuda.manual_seed torch.cuda.manual_seed_all")
_RANDOM_TORCH = _words(
    """rand randn randint randperm rand_like randn_like randint_like bernoulli multinomial normal poisson dropout dropout2d
    alpha_dropout gumbel_softmax rrelu"""
)
_RANDOM_METHODS = _words("random_ normal_ uniform_ bernoulli_ bernoulli multinomial exponential_ geometric_ log_normal_ sample rsample")
_TRANSFORMS = ("torchvision.transforms.", "torchaudio.transforms.", "torchtext.transforms.", *_OWN_GENERATORS, "kornia.")
_DETERMINISTIC = _words(
    """Compose ToTensor PILToTensor ToPILImage ToImage ToDtype ToPureTensor Normalize Resize Scale CenterCrop Pad Grayscale Lambda
    ConvertImageDtype FiveCrop TenCrop LinearTransformation Identity MelSpectrogram Spectrogram MFCC Resample AmplitudeToDB"""
)
# Calls that only hand on what memory already holds.
_CHEAP = _words(
    """len int float str bool tuple list dict isinstance is_tensor tensor as_tensor from_numpy Tensor FloatTensor LongTensor long
    double item tolist clone copy numpy items keys values get array asarray astype int64 float32 squeeze unsqueeze detach super range
    zip enumerate IndexError"""
)
CHANGING_METHODS = _words("append add update setdefault pop popitem insert extend clear remove discard put appendleft popleft")
# An object of which only such methods are called is data: a string, a container, an array, a tensor, a data frame.
DATA_METHODS = CHANGING_METHODS | _words(
    """get items keys values split rsplit strip lstrip rstrip join format replace lower upper encode decode startswith endswith index
    count find copy clone astype reshape view float long int double half numpy tolist item sum mean max min argmax transpose permute
    squeeze unsqueeze sort get_group to_numpy toarray flatten ravel size isin query head iterrows detach contiguous type resize convert"""
)


def of_call(facts: Facts, call: ast.Call) -> Iterator[Trait]:
    """What a call does by itself, whatever it calls in the project left aside."""
    name, meaning = last_name(call.func) or "", facts.calls.meaning(call) or ""
    if name not in _CHEAP:
        yield Trait.WORK
    if _uses_device(facts, call):
        yield Trait.DEVICE
    graph = any(keyword.arg == "requires_grad" and not is_constant(keyword.value, False) for keyword in call.keywords)
    if graph or name == "requires_grad_" or meaning in ("torch.nn.Parameter", "torch.nn.parameter.Parameter"):
        yield Trait.GRAPH
    if name in _SPARSE:
        yield Trait.SPARSE
    if meaning.startswith(_PROCESS_MODULES) or meaning in _PROCESS_CALLS:
        yield Trait.PROCESSES
    if meaning.startswith("cv2."):
        yield Trait.OPENCV
    if meaning == "torch.utils.data.get_worker_info":
        yield Trait.ASKS_WORKER
    if meaning.startswith("numpy.random.") and meaning not in _GENERATORS:
        yield Trait.NUMPY
    if _draws(meaning) or (not meaning and name in _RANDOM_METHODS):
        yield Trait.RANDOM


def _uses_device(facts: Facts, call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if name in ("cuda", "pin_memory") and facts.names.definition(call.func) is None and facts.own_method(call) is None:
        return True
    if name == "to" and facts.own_method(call) is None and not _is_cpu_or_dtype(facts, argument(call, "device", 0)):
        return True
    given = [keyword.value for keyword in call.keywords if keyword.arg in ("device", "map_location")]
    return any(not _is_cpu_or_dtype(facts, value) for value in given)


def _is_cpu_or_dtype(facts: Facts, expression: ast.expr | None) -> bool:
    """Whether an argument of ``to`` surely leaves a tensor on the CPU."""
    if expression is None or is_constant(expression, None):
        return True
    if last_name(expression) == "dtype" or (facts.names.qualified(expression) or "").startswith("torch."):
        return True
    if isinstance(expression, ast.Attribute) and expression.attr == "device" and not outlives_sample(facts, expression):
        return True  # where another part of the sample is
    device = facts.devices.of(expression)
    return device is not None and device.only_cpu


def _draws(meaning: str) -> bool:
    if meaning in _GENERATORS:
        return False
    if meaning.startswith("torch."):
        home, _, name = meaning.rpartition(".")
        return home in ("torch", "torch.nn.functional") and name in _RANDOM_TORCH
    return meaning.startswith(("numpy.random.", "random.")) or meaning.endswith(".get_params")


def is_cuda_name(facts: Facts, node: ast.Attribute) -> bool:
    """Whether an attribute is something of ``torch.cuda`` that needs a device (``torch.cuda.FloatTensor``)."""
    meaning = facts.names.qualified(node) or ""
    return meaning.startswith("torch.cuda.") and meaning not in _HARMLESS_CUDA


def is_transform(meaning: str | None) -> bool:
    """Whether a library's dotted name is a transform of samples."""
    return meaning is not None and meaning.startswith(_TRANSFORMS)


def of_library_object(meaning: str) -> Iterator[Trait]:
    """What an object of a library does when it is called for each sample."""
    name = meaning.rpartition(".")[2]
    yield Trait.WORK
    if meaning.startswith(_OWN_GENERATORS):
        yield Trait.GENERATOR
    elif is_module_name(meaning) and not meaning.startswith("timm.data.") and name not in ("Sequential", "Identity"):
        yield Trait.GRAPH
    elif not (is_transform(meaning) and name in _DETERMINISTIC) and not meaning.startswith(("builtins.", "torch.utils.data.")):
        yield Trait.RANDOM


def of_kept(origin: Origin) -> Iterator[tuple[Trait, ast.AST]]:
    """What it means to keep a value from one sample to the next: open files, generators, what cannot be pickled."""
    facts, node = origin.facts, origin.node
    if isinstance(node, (ast.Lambda, ast.GeneratorExp)):
        yield Trait.LOCAL, node
    elif isinstance(node, ast.Call):
        meaning = facts.calls.meaning(node)
        if meaning in _HANDLES:
            yield Trait.HANDLE, node
        elif meaning in _GENERATORS:
            yield Trait.GENERATOR, node
        elif meaning in _NOT_PICKLED:
            yield Trait.LOCAL, node
        elif isinstance(node.func, ast.Attribute) and node.func.attr in _PARTS_OF_HANDLES:
            for inner in origins_of(facts, node.func.value, origin.within) or ():
                yield from ((trait, place) for trait, place in of_kept(inner) if trait is Trait.HANDLE)
    else:
        for part in _parts(node):
            for inner in origins_of(facts, part, origin.within) or ():
                yield from of_kept(inner)


def _parts(node: ast.expr) -> list[ast.expr]:
    """The expressions whose values a container or a part of a whole keeps alive."""
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return node.elts
    if isinstance(node, ast.Dict):
        return node.values
    if isinstance(node, (ast.ListComp, ast.SetComp)):
        return [node.elt]
    if isinstance(node, ast.DictComp):
        return [node.value]
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        return [node.value]  # a dataset of an open HDF5 file; a slice would be a copy
    return []


def _is_class(function: ast.AST, name: str) -> bool:
    """Whether a name is the parameter of a class method that stands for the class."""
    if not isinstance(function, FUNCTIONS):
        return False
    by_class = any(isinstance(item, ast.Name) and item.id == "classmethod" for item in function.decorator_list)
    return by_class and [item.arg for item in (*function.args.posonlyargs, *function.args.args)][:1] == [name]


def outlives_sample(facts: Facts, expression: ast.expr) -> bool:
    """Whether an expression is a part of something kept: of ``self``, of the class, or of a variable of the module."""
    root = expression
    while isinstance(root, (ast.Attribute, ast.Subscript)):
        root = root.value
    if not isinstance(root, ast.Name):
        return False
    if facts.is_self(root):
        return root is not expression
    found = facts.names.lookup(root.id, root)
    if found is None:
        return False
    if _is_class(found[0].node, root.id):
        return root is not expression
    if found[0] is facts.names.module:
        return any(binding.how in (Bound.ASSIGN, Bound.AUGMENTED, Bound.IMPORT) for binding in found[1])
    reaching = facts.flow.reaching(root)
    values = [binding.value for binding in reaching if binding.how is Bound.ASSIGN and not binding.path]
    alias = len(reaching) == 1 and len(values) == 1 and isinstance(values[0], (ast.Attribute, ast.Subscript))
    return alias and values[0] is not None and outlives_sample(facts, values[0])


def changes_kept(facts: Facts, node: ast.AST) -> bool:
    """Whether a node changes something that outlives the call in which it stands: an attribute of ``self``, a list kept there."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return outlives_sample(facts, node)
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return outlives_sample(facts, node.value)
    called = node.func if isinstance(node, ast.Call) else None
    return isinstance(called, ast.Attribute) and called.attr in CHANGING_METHODS and outlives_sample(facts, called.value)
