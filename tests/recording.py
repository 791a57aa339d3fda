"""Run training programs one after the other and record what their training does: ``python tests/recording.py [OPTIONS] FOLDER...``.

Each folder in a FOLDER is a program: its ``main.py`` runs there as a script. Where a ``start.py`` stands beside it, that runs
before, unrecorded, and ``main.py`` twice, so that it goes on from files that it finds. Printed is one JSON object, for each FOLDER
by its name a record of each program by its folder's:

``printed``     what it printed
``parameters``  the numbers of all that its optimizers trained, in the end
``calls``       what it called, in order: ``scale``, ``backward``, ``unscale``, ``clip``, ``step`` (of a scaler), ``plain step``
                (of an optimizer alone), ``update``, ``schedule``; those for its second optimizer are ``step:2`` and so on
``steps``       for each step of a scaler, whether the gradients were finite, and whether any parameter changed
``scales``      the scale after each update of a scaler that is switched on
``layers``      how often linear and convolutional layers gave which dtype, apart in training and in evaluation
``error``       how it failed, or null

``--bfloat16`` turns CUDA's autocast into that of the CPU and switches scalers on there, whatever the program says. ``--overflow``
names one more folder, in whose programs the second scaled loss is infinite. Of several ranks only the first overflows and prints.
Scalers begin at 1024, so that nothing overflows by itself. Warnings of torch to its users are errors.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import io
import json
import os
import runpy
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

FIRST_SCALE = 1024.0
OVERFLOWS = 2


class Record:
    """What one program did so far. ``overflow`` is the number of the scaled loss that becomes infinite; 0 for none."""

    def __init__(self, overflow: int) -> None:
        self.overflow = overflow
        self.scaled = 0
        self.calls: list[str] = []
        self.steps: list[tuple[bool, bool]] = []
        self.scales: list[float] = []
        self.layers: collections.Counter[str] = collections.Counter()
        self.optimizers: list[torch.optim.Optimizer] = []
        self.known = 0  # optimizers of earlier runs
        self.inside = 0

    @contextlib.contextmanager
    def call(self, name: str, optimizer: torch.optim.Optimizer | None = None) -> Iterator[None]:
        """Note a call, but not those that it makes itself."""
        if not self.inside:
            if optimizer is not None and optimizer not in self.optimizers:
                self.optimizers.append(optimizer)
            number = 1 if optimizer is None else self.optimizers.index(optimizer) + 1 - self.known
            self.calls.append(name if number == 1 else f"{name}:{number}")
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    def parameters(self) -> list[torch.Tensor]:
        """What the optimizers train, from the start of each."""
        return [parameter.detach() for optimizer in self.optimizers for parameter in _parameters(optimizer)]


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


class Recorder:
    """Torch's own calls, replaced for the rest of this process by such as note that they were called."""

    def __init__(self, bfloat16: bool) -> None:
        self.record = Record(0)
        self._watch_scalers(bfloat16)
        self._watch_others()
        if bfloat16:
            torch.autocast = _OnTheHost  # type: ignore[misc]

    def _watch_scalers(self, bfloat16: bool) -> None:
        scaler = torch.amp.GradScaler
        make, scale, unscale, step, update = scaler.__init__, scaler.scale, scaler.unscale_, scaler.step, scaler.update

        def made(self: Any, device: str = "cuda", *args: Any, enabled: bool = True, **options: Any) -> None:
            given = {**options, "init_scale": FIRST_SCALE, "enabled": enabled or bfloat16}
            make(self, "cpu" if bfloat16 else device, **given)

        def scaled(scaler: Any, outputs: torch.Tensor) -> Any:
            self.record.scaled += 1
            factor = float("inf") if self.record.scaled == self.record.overflow else 1.0
            with self.record.call("scale"):
                return scale(scaler, outputs * factor)

        def unscaled(scaler: Any, optimizer: torch.optim.Optimizer) -> None:
            with self.record.call("unscale", optimizer):
                unscale(scaler, optimizer)

        def stepped(scaler: Any, optimizer: torch.optim.Optimizer, *args: Any, **options: Any) -> Any:
            gradients = [parameter.grad for parameter in _parameters(optimizer) if parameter.grad is not None]
            finite = all(bool(gradient.isfinite().all()) for gradient in gradients)
            before = [parameter.detach().clone() for parameter in _parameters(optimizer)]
            with self.record.call("step", optimizer):
                result = step(scaler, optimizer, *args, **options)
            changed = any(bool((now.detach() != was).any()) for now, was in zip(_parameters(optimizer), before))
            self.record.steps.append((finite, changed))
            return result

        def updated(scaler: Any, *args: Any) -> None:
            with self.record.call("update"):
                update(scaler, *args)
            if scaler.is_enabled():
                self.record.scales.append(scaler.get_scale())

        scaler.__init__, scaler.scale, scaler.unscale_, scaler.step, scaler.update = made, scaled, unscaled, stepped, updated  # type: ignore[method-assign]

    def _watch_others(self) -> None:
        schedule = torch.optim.lr_scheduler.LRScheduler
        move = schedule.step

        def moved(scheduler: Any, *args: Any) -> None:
            at_rest = scheduler.last_epoch < 0  # its constructor takes the first step itself
            with contextlib.nullcontext() if at_rest else self.record.call("schedule"):
                move(scheduler, *args)

        def about_to_step(optimizer: torch.optim.Optimizer, args: Any, options: Any) -> None:
            with self.record.call("plain step", optimizer):
                pass

        def gave(module: torch.nn.Module, given: Any, output: Any) -> None:
            if isinstance(module, (torch.nn.Linear, torch.nn.Conv2d)):
                self.record.layers[f"{'training' if module.training else 'evaluation'} {output.dtype}"] += 1

        schedule.step = moved  # type: ignore[method-assign]
        torch.Tensor.backward = self._noting("backward", torch.Tensor.backward)  # type: ignore[method-assign]
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            setattr(torch.nn.utils, name, self._noting("clip", getattr(torch.nn.utils, name)))
        register_optimizer_step_pre_hook(about_to_step)
        torch.nn.modules.module.register_module_forward_hook(gave)

    def _noting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def noting(*args: Any, **options: Any) -> Any:
            with self.record.call(name):
                return function(*args, **options)

        return noting

    def run(self, folder: Path, overflow: int) -> dict[str, Any]:
        """The record of one program."""
        printed = io.StringIO()
        start, main = folder / "start.py", folder / "main.py"
        error = None
        try:
            with _at_home(folder), contextlib.redirect_stdout(printed):
                self.record = Record(0)
                if start.exists():
                    runpy.run_path(str(start), run_name="__main__")
                self.record = Record(overflow)
                for _ in range(2 if start.exists() else 1):
                    self.record.known = len(self.record.optimizers)
                    runpy.run_path(str(main), run_name="__main__")
        except Exception:
            error = traceback.format_exc()
        record = self.record
        numbers = [number for parameter in record.parameters() for number in parameter.cpu().flatten().tolist()]
        told = {"printed": printed.getvalue(), "parameters": numbers, "calls": record.calls, "steps": record.steps}
        return {**told, "scales": record.scales, "layers": record.layers, "error": error}


class _OnTheHost(torch.amp.autocast):
    """Autocast for CUDA, as that of the CPU in bfloat16."""

    def __init__(self, device_type: str, **options: Any) -> None:
        super().__init__("cpu", dtype=torch.bfloat16)


@contextlib.contextmanager
def _at_home(folder: Path) -> Iterator[None]:
    """A program's own folder, modules and treatment of warnings, which torch's users should never see."""
    known, where = set(sys.modules), os.getcwd()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            warnings.filterwarnings("ignore", message="PyTorch was compiled without cuDNN")  # the pretend GPU's recurrent layers
            yield
    finally:
        sys.path.remove(str(folder))
        os.chdir(where)
        for name in set(sys.modules) - known:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                del sys.modules[name]


def main() -> None:
    """Run the programs of some folders and print all records."""
    parser = argparse.ArgumentParser(prog="recording.py")
    parser.add_argument("--bfloat16", action="store_true", help="compute autocast regions in bfloat16 on the CPU, with a scaler")
    parser.add_argument("--overflow", type=Path, help="a folder in whose programs the second scaled loss is infinite")
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    options = parser.parse_args()
    recorder, first = Recorder(options.bfloat16), os.environ.get("RANK", "0") == "0"
    records = {}
    for folder in [*options.folders, *([options.overflow] if options.overflow else [])]:
        overflow = OVERFLOWS if folder == options.overflow and first else 0
        records[folder.name] = {home.name: recorder.run(home, overflow) for home in sorted(folder.iterdir())}
    if first:
        print(json.dumps(records))


if __name__ == "__main__":
    main()
