"""Make tensors of numpy arrays without a needless copy.

Why:
    ``torch.tensor(array)`` copies an array that nobody else holds. Of a list of arrays torch reads every number as a
    Python object, some twenty times slower than numpy joins them. The constructors from before ``dtype=`` take a whole
    number for a size, and noise that numpy draws on the host is float64 and has to be converted and moved.

Before:
    import numpy as np
    import torch

    image = torch.tensor(np.zeros((2, 3)) + 1)
    batch = torch.FloatTensor([np.ones(3), np.zeros(3)])
    target = torch.LongTensor(np.arange(3))

After:
    import numpy as np
    import torch

    image = torch.from_numpy(np.zeros((2, 3)) + 1)
    batch = torch.as_tensor(np.array([np.ones(3), np.zeros(3)]), dtype=torch.float32)
    target = torch.as_tensor(np.arange(3), dtype=torch.long)

Safety:
    Exact: the same values, dtype and device, and the same sharing of memory, except that a tensor may take over an
    array that is surely new and that nothing else reads. Held where an array may be written while the tensor lives,
    where the arrays of a list may differ in dtype, which numpy and torch join by different rules, and where the program
    changes the default dtype or device. Effect ``rng`` where numpy's draws for a constructor that may be of the GPU
    become draws of the device.

Reference:
    https://docs.pytorch.org/docs/stable/generated/torch.from_numpy.html,
    https://docs.pytorch.org/docs/stable/generated/torch.as_tensor.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchfix.edits import AddImport, Edit, RemoveImport, Replace
from torchfix.facts import Facts
from torchfix.facts.code.calls import argument, has_stars, is_constant
from torchfix.facts.tensors.arrays import Array
from torchfix.facts.tensors.constructors import Constructor
from torchfix.facts.tensors.creations import LEGACY
from torchfix.facts.tensors.identity import is_consumed
from torchfix.transform import Effect, Finding, Held, NoOptions, Transform

_COPIED = "torch.tensor copies an array"
_LIST = "torch reads a list of arrays number by number"
_LEGACY = "a constructor from before dtype= makes the tensor, which would take a whole number for a size"
_DRAWN = "numpy makes the values in float64 on the host, and they are converted and copied"
_DRAWS = {**dict.fromkeys(("normal", "standard_normal", "randn"), "normal_"), **dict.fromkeys(("uniform", "rand", "random"), "uniform_")}
_FILLS = {"ones": "fill_(1.0)", "zeros": "fill_(0.0)"}

_SHARED = Held(
    "shared-memory",
    "the array is held elsewhere too, and what is written into it or into the tensor would be seen in both",
    "write torch.from_numpy where neither is written while both live",
)
_MIXED = Held(
    "mixed-dtypes",
    "the arrays of the list may differ in dtype, and numpy joins dtypes by other rules than torch",
    "give the arrays one dtype, then write torch.from_numpy(np.array(...))",
)
_EMPTY = Held(
    "may-be-empty", "the list may be empty, of which torch makes a float32 tensor", "write torch.from_numpy(np.array(...)) where it is not"
)
_DTYPE = Held(
    "default-dtype",
    "the program changes the default dtype, which torch.Tensor follows",
    "write torch.as_tensor with the dtype that is meant",
)
_DEVICE = Held(
    "default-device", "the program changes the default device, which torch.from_numpy does not follow", "write torch.as_tensor with device="
)
_RESIZED = Held(
    "resized", "the program resizes tensors in place, which memory of numpy does not allow", "resize the array before, or keep the copy"
)
_CALLS = {
    _DTYPE: ("set_default_dtype", "set_default_tensor_type"),
    _DEVICE: ("set_default_device", "set_default_tensor_type"),
    _RESIZED: ("resize_", "resize_as_"),
}
_SEED = "With a fixed seed other numbers are drawn: by torch's generator on the device, no longer by numpy's."


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    for call in facts.calls.to("torch.tensor"):
        if len(call.args) == 1 and not has_stars(call) and argument(call, "pin_memory") is None:
            yield from _of_tensor(facts, call, call.args[0])
    for call in _constructor_calls(facts):
        made = facts.constructors.of(call)
        if made is None or len(call.args) != 1 or call.keywords or isinstance(call.args[0], ast.Starred):
            continue
        if made.is_on_host:
            yield from _of_constructor(facts, call, call.args[0], made)
        else:
            yield from _of_draws(facts, call, call.args[0], made)


def _constructor_calls(facts: Facts) -> list[ast.Call]:
    """The calls that may be of legacy constructors: by their names, or by a variable that is given one."""
    words = set(LEGACY)
    for name in LEGACY:
        for use in facts.tree.attributes.get(name, ()):
            statement = facts.tree.statement(use)
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            words |= {target.id for target in targets if isinstance(target, ast.Name)}
    found = [call for word in words for call in facts.tree.calls.get(word, ())]
    return sorted(found, key=lambda call: (call.lineno, call.col_offset))


def _of_tensor(facts: Facts, call: ast.Call, data: ast.expr) -> Iterator[Finding]:
    """``torch.tensor(array)`` and ``torch.tensor([array, array])``."""
    array = facts.arrays.of(data)
    if array is None:
        yield from _of_list(facts, call, data, None)
        return
    dtype = argument(call, "dtype")
    if not _saves_copy(facts, call, array, dtype):
        return
    held = _changed(facts, call, _DEVICE, _RESIZED)
    if held is None and not (array.is_new or (array.is_writable and is_consumed(facts, call))):
        held = _SHARED
    if held is not None:
        yield Finding(call, _COPIED, held=held)
        return
    given = [item for item in call.keywords if item.arg in ("dtype", "device")]
    plain = array.is_new and array.is_exact and not given
    because = "the array is made here, and nothing else reads it" if array.is_new else "the tensor is only read, at once"
    yield Finding(call, _COPIED, tuple(_spelled(facts, call, "from_numpy" if plain else "as_tensor", "$data", data)), because=because)


def _saves_copy(facts: Facts, call: ast.Call, array: Array, dtype: ast.expr | None) -> bool:
    """Whether a copy is saved: not one that converts the values, or takes them to another device."""
    wanted = (facts.names.qualified(dtype) or "").rpartition(".")[2] if dtype is not None else None
    device = argument(call, "device")
    known = facts.devices.of(device) if device is not None else None
    elsewhere = known is not None and "cpu" not in known.types and "?" not in known.types
    converts = wanted is not None and array.dtype is not None and wanted != array.dtype
    return not elsewhere and not converts


def _of_list(facts: Facts, call: ast.Call, data: ast.expr, made: Constructor | None) -> Iterator[Finding]:
    """A list of arrays, joined by numpy first."""
    items = facts.arrays.items(data)
    if items is None or not all(item.has_dimension and item.is_exact for item in items):
        return
    dtypes = {item.dtype for item in items}
    written = isinstance(data, ast.List) and not all(isinstance(item, ast.Starred) for item in data.elts)
    typed = made is not None or argument(call, "dtype") is not None
    held = _changed(facts, call, _DEVICE, _RESIZED)
    if len(dtypes) != 1 or None in dtypes:
        held = _MIXED
    elif not typed and not written:
        held = _EMPTY
    if held is not None:
        yield Finding(call, _LIST, held=held)
        return
    join = "numpy.array"  # in rows, as torch does; numpy.stack follows the arrays, which may be transposed
    joined = facts.names.spell(join, call) or join
    plain = not typed and argument(call, "device") is None
    edits = [*_spelled(facts, call, "from_numpy" if plain else "as_tensor", f"{joined}($data)", data, made)]
    if joined == join:
        edits.append(AddImport("numpy"))
    yield Finding(call, _LIST, tuple(edits), because="all arrays of the list have one dtype and a dimension")


def _of_constructor(facts: Facts, call: ast.Call, data: ast.expr, made: Constructor) -> Iterator[Finding]:
    """``torch.FloatTensor(array)`` and ``torch.FloatTensor([array, array])``."""
    array = facts.arrays.of(data)
    if (array is None or not array.has_dimension) and not facts.arrays.items(data):
        return
    held = _changed(facts, call, *([_DTYPE] if made.follows_default else []), _DEVICE)
    if held is not None:
        yield Finding(call, _LEGACY, held=held)
    elif array is None:
        yield from _of_list(facts, call, data, made)
    else:
        because = "the argument is an array with a dimension, whose memory both share, or copy, alike"
        yield Finding(call, _LEGACY, tuple(_spelled(facts, call, "as_tensor", "$data", data, made)), because=because)


def _of_draws(facts: Facts, call: ast.Call, data: ast.expr, made: Constructor) -> Iterator[Finding]:
    """``Tensor(np.random.normal(0, 1, (n, m)))``, drawn where the tensor is; ``Tensor(np.ones((n, m)))``, filled there."""
    if not isinstance(data, ast.Call) or has_stars(data):
        return
    home, _, name = (facts.calls.meaning(data) or "").rpartition(".")
    filled = home == "numpy" and name in _FILLS and len(data.args) == 1 and not data.keywords
    bounds = data.args[:2] if name in ("normal", "uniform") else []
    drawn = home == "numpy.random" and name in _DRAWS and not data.keywords and "float" in made.dtype
    array = facts.arrays.of(data)
    sizes = data.args[len(bounds) :]
    if not (filled or drawn) or array is None or not array.has_dimension or not all(map(facts.numbers.is_plain, bounds)):
        return
    given = sizes[0].elts if len(sizes) == 1 and isinstance(sizes[0], (ast.Tuple, ast.List)) else sizes
    parts = {f"size_{place}": item.value if isinstance(item, ast.Starred) else item for place, item in enumerate(given)}
    words = ", ".join(f"*$size_{place}" if isinstance(item, ast.Starred) else f"$size_{place}" for place, item in enumerate(given))
    limits = ", ".join(f"$bound_{place}" for place in range(len(bounds)))
    parts |= {"made": call.func, **{f"bound_{place}": bound for place, bound in enumerate(bounds)}}
    step = _FILLS[name] if filled else f"{_DRAWS[name]}({limits})"
    edits = (Replace(call, f"$made({words}).{step}", parts),)
    if filled:
        yield Finding(call, _DRAWN, edits, because="the values are the same")
    else:
        yield Finding(call, _DRAWN, edits, frozenset({Effect.RNG}), "torch draws from the same distribution", (_SEED,))


def _changed(facts: Facts, call: ast.Call, *asked: Held) -> Held | None:
    """The first of these reasons that the program gives by a call anywhere, or by a block around this one."""
    for held in asked:
        files = facts.program.everywhere
        called = any(name in item.source.text and name in item.tree.calls for item in files for name in _CALLS[held])
        if called or (held is _DEVICE and facts.regions.under(call, ("torch.device",))):
            return held
    return None


def _spelled(facts: Facts, call: ast.Call, function: str, template: str, data: ast.expr, made: Constructor | None = None) -> Iterator[Edit]:
    """The call of another function with the data as in the template, and with the dtype that a constructor has in its name."""
    spelled = facts.names.spell(f"torch.{function}", call)
    parts, words, behind = {"data": data}, [template], ""
    for item in call.keywords:
        if item.arg == "requires_grad" and not is_constant(item.value, False):
            behind = ".requires_grad_()" if is_constant(item.value, True) else ".requires_grad_($needs)"
            parts["needs"] = item.value
        if item.arg in ("dtype", "device"):
            parts[item.arg] = item.value
            words.append(f"{item.arg}=${item.arg}")
    if made is not None:
        words.append(f"dtype={facts.names.spell(f'torch.{made.dtype}', call) or f'torch.{made.dtype}'}")
    if spelled is None:
        yield AddImport("torch")
    for used in facts.references.to([facts.calls.meaning(call) or ""]):
        if used.call is call and used.imported is not None:
            yield RemoveImport(*used.imported)
    yield Replace(call, f"{spelled or f'torch.{function}'}({', '.join(words)}){behind}", parts)


TRANSFORM = Transform.from_module(__name__, __doc__, group="data", literals=(b"Tensor", b"tensor"), find=find, since="0.4")
