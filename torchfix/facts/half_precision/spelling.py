"""How one file writes mixed precision, for the oldest torch that its project allows."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchfix.facts import Facts


@dataclass(frozen=True)
class Spelling:
    """Names of mixed precision, as they can be written at one place of a file.

    Args:
        facts: the file.
        at: the place.
    """

    facts: Facts
    at: ast.AST

    def torch(self, name: str) -> str:
        """A name of torch as the file writes it."""
        return self.facts.names.spell(f"torch.{name}", self.at) or f"torch.{name}"

    def since(self, *version: int) -> bool:
        """Whether every torch that the project allows is at least this new."""
        oldest = self.facts.project.torch
        return oldest is None or oldest >= version

    @property
    def has_bfloat16(self) -> bool:
        """Whether autocast can be told its precision: since torch 1.10."""
        return self.since(1, 10)

    @property
    def capability(self) -> str:
        """The major number of the GPU's compute capability."""
        return f"{self.torch('cuda.get_device_capability')}()[0]"

    def autocast(self, dtype: str, enabled: str) -> str:
        """The ``with`` line of a region; before torch 1.10 autocast takes no precision and computes in float16."""
        if not self.has_bfloat16:
            return f"with {self.torch('cuda.amp.autocast')}(enabled={enabled}):"
        return f'with {self.torch("autocast")}("cuda", dtype={dtype}, enabled={enabled}):'

    def scaler(self, enabled: str) -> str:
        """The call that makes a scaler; ``torch.amp`` has it since torch 2.3."""
        if self.since(2, 3):
            return f'{self.torch("amp.GradScaler")}("cuda", enabled={enabled})'
        return f"{self.torch('cuda.amp.GradScaler')}(enabled={enabled})"

    def choice(self, bfloat16: str) -> str:
        """The expression of a precision that a test decides."""
        return f"{self.torch('bfloat16')} if {bfloat16} else {self.torch('float16')}"

    def on_cuda(self, variable: str | None, flag: str | None, *, is_object: bool) -> str:
        """The test for CUDA: of the program's own device variable or flag where one can be read, else of the machine.

        Args:
            variable: the variable that holds the device.
            flag: a variable on whose truth copies to CUDA depend.
            is_object: whether the variable surely holds a ``torch.device`` rather than a word.
        """
        if variable is not None:
            device = variable if is_object else f"{self.torch('device')}({variable})"
            return f'{device}.type == "cuda"'
        return f"bool({flag})" if flag is not None else f"{self.torch('cuda.is_available')}()"
