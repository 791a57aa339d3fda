"""The constructors from before ``dtype=`` existed: ``torch.FloatTensor(...)`` and its like, also through a variable.

Old programs choose one for the whole file: ``Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor``.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfix.facts.tensors.creations import LEGACY

if TYPE_CHECKING:
    from torchfix.facts import Facts

_HOST, _DEVICE = "torch", "torch.cuda"


@dataclass(frozen=True)
class Constructor:
    """What a legacy constructor makes.

    Args:
        dtype: the name of the dtype in torch.
        follows_default: whether the program's default dtype decides instead, as for ``torch.Tensor``.
        homes: the modules that it may come from: ``torch`` for host memory, ``torch.cuda`` for the current GPU.
    """

    dtype: str
    follows_default: bool
    homes: frozenset[str]

    @property
    def is_on_host(self) -> bool:
        """Whether the tensor surely is in host memory."""
        return self.homes == {_HOST}


class Constructors:
    """The calls of legacy constructors in one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def of(self, call: ast.Call) -> Constructor | None:
        """What a call makes, where it calls legacy constructors of one dtype and nothing else."""
        meaning = self._facts.calls.meaning(call)
        if meaning is not None:
            return _joined([meaning])
        if not isinstance(call.func, (ast.Name, ast.Attribute)):
            return None
        values = self._facts.values.of(call.func) or ()
        names = [
            value.facts.names.qualified(value.node) if isinstance(value.node, (ast.Name, ast.Attribute)) and not value.path else None
            for value in values
        ]
        return _joined([name for name in names if name is not None]) if None not in names else None


def _joined(names: list[str]) -> Constructor | None:
    parts = [name.rpartition(".") for name in names]
    dtypes = {LEGACY.get(last) for _, _, last in parts}
    homes = frozenset(home for home, _, _ in parts)
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    if dtype is None or not homes <= {_HOST, _DEVICE}:
        return None
    return Constructor(dtype, any(last == "Tensor" for _, _, last in parts), homes)
