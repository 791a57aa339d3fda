"""What surrounds a place: no_grad, autocast and their like, and which frameworks own the training loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.tree import FUNCTIONS

if TYPE_CHECKING:
    from torchfix.facts import Facts

NO_GRAD = ("torch.no_grad", "torch.inference_mode")
GRADIENT_SWITCHES = (*NO_GRAD, "torch.enable_grad")
AUTOCAST = ("torch.autocast", "torch.cuda.amp.autocast", "torch.cpu.amp.autocast")

# Packages, and names in packages, that run the training loop, or scale and step in the user's place.
_FRAMEWORKS = {
    "accelerate": "Accelerate",
    "deepspeed": "DeepSpeed",
    "pytorch_lightning": "Lightning",
    "lightning": "Lightning",
    "lightning.fabric": "Fabric",
    "lightning.Fabric": "Fabric",
    "lightning_fabric": "Fabric",
    "ignite": "Ignite",
    "fastai": "fastai",
    "composer": "Composer",
    "colossalai": "ColossalAI",
    "horovod": "Horovod",
    "torch_xla": "PyTorch/XLA",
    "apex": "Apex",
    "catalyst": "Catalyst",
    "transformers.Trainer": "Transformers' Trainer",
    "transformers.Seq2SeqTrainer": "Transformers' Trainer",
    "transformers.trainer": "Transformers' Trainer",
    "transformers.trainer_seq2seq": "Transformers' Trainer",
    "trl": "TRL",
    "mmengine": "MMEngine",
    "mmcv.runner": "MMCV",
    "detectron2.engine": "Detectron2",
    "skorch": "skorch",
}


# What of a framework takes the training step into its hands, by its last name; of those not listed, whatever is used.
_IN_CHARGE = {
    "Accelerate": ("Accelerator",),
    "DeepSpeed": ("initialize",),
    "Lightning": ("LightningModule", "Trainer", "Fabric", "LightningLite", "LightningCLI"),
    "Ignite": ("Engine", "create_supervised_trainer"),
    "Horovod": ("DistributedOptimizer", "DistributedGradientTape"),
    "Transformers' Trainer": ("Trainer", "Seq2SeqTrainer"),
    "Composer": ("Trainer",),
    "Catalyst": ("Runner", "SupervisedRunner"),
}


class Regions:
    """Questions about what surrounds a place in one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def under(self, node: ast.AST, names: tuple[str, ...]) -> bool:
        """Whether a place stands under a ``with`` or a decorator of one of these dotted names."""
        inner = node
        for outer in self._facts.tree.ancestors(node):
            around: list[ast.expr] = []
            if isinstance(outer, (ast.With, ast.AsyncWith)) and isinstance(inner, ast.stmt):
                around = [item.context_expr for item in outer.items]
            elif isinstance(outer, FUNCTIONS) and isinstance(inner, ast.stmt):
                around = outer.decorator_list
            if any(self._means(expression, names) for expression in around):
                return True
            inner = outer
        return False

    def _means(self, expression: ast.expr, names: tuple[str, ...]) -> bool:
        called = expression.func if isinstance(expression, ast.Call) else expression
        return self._facts.names.qualified(called) in names

    def frameworks(self) -> tuple[str, ...]:
        """The frameworks that this file imports, by the names that people know; a module of the project is none."""
        return self._frameworks

    @cached_property
    def _frameworks(self) -> tuple[str, ...]:
        found = []
        for name in self._imported():
            known = _framework_key(name)
            if known is not None and self._facts.project.module(name.partition(".")[0], self._facts.path) is None:
                found.append(_FRAMEWORKS[known])
        return tuple(dict.fromkeys(found))

    def in_charge(self) -> tuple[str, ...]:
        """The frameworks of which this file uses what runs the training step, not only a tool that they bring along."""
        return self._used

    @cached_property
    def _used(self) -> tuple[str, ...]:
        found = []
        for used in self._framework_uses:
            known = _framework_key(used)
            listed = _IN_CHARGE.get(_FRAMEWORKS[known]) if known is not None else None
            if known is not None and (listed is None or used.endswith(".*") or used.rpartition(".")[2] in listed):
                found.append(_FRAMEWORKS[known])
        return tuple(dict.fromkeys(found))

    @cached_property
    def _framework_uses(self) -> tuple[str, ...]:
        """The dotted names, as far as they go, that the file uses of the frameworks it imports; ``package.*`` for a star import."""
        if not self._frameworks:
            return ()
        found: dict[str, None] = {}
        tree = self._facts.tree
        for node in tree.imports:
            if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
                found[f"{node.module}.*"] = None
            for alias in node.names:
                for use in tree.names.get(alias.asname or alias.name.partition(".")[0], ()):
                    whole: ast.expr = use
                    while isinstance(outer := tree.parent(whole), ast.Attribute):
                        whole = outer
                    if isinstance(use.ctx, ast.Load):
                        found[self._facts.names.qualified(whole) or ""] = None
        return tuple(found)

    def _imported(self) -> Iterator[str]:
        """The dotted names that the file imports, and those of trainers that it reads from an imported package."""
        for node in self._facts.tree.imports:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif not node.level:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
        for trainer in ("Trainer", "Seq2SeqTrainer"):
            yield from (self._facts.names.qualified(use) or "" for use in self._facts.tree.attributes.get(trainer, ()))

    def is_distributed(self) -> bool:
        """Whether the file already runs one process per device."""
        found = self._facts.calls.to(
            "torch.distributed.init_process_group",
            "torch.nn.parallel.DistributedDataParallel",
            "torch.utils.data.DistributedSampler",
            "torch.multiprocessing.spawn",
        )
        return next(found, None) is not None


def _framework_key(name: str) -> str | None:
    """The longest entry among the known frameworks that a dotted name belongs to."""
    return max((key for key in _FRAMEWORKS if name == key or name.startswith(f"{key}.")), key=len, default=None)
