"""amp-loop, executed: programs in every form train before and after, without CUDA, in bfloat16 on the CPU, and on the pretend GPU."""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.running import ROOT, run_on_cpu, run_on_fake_gpu, run_two_processes, skip_on_cuda_build
from tests.transforms.amp_programs import PROGRAMS
from torchfix import registry
from torchfix.engine import EngineSettings, advance
from torchfix.facts.project.declarations import Declarations
from torchfix.facts.project.project import Project
from torchfix.facts.project.versions import Range
from torchfix.spanning import Answer, Grounds, Neighbour, settle
from torchfix.testing import run_on_program
from torchfix.transform import Selected

RECORDING = ROOT / "tests" / "recording.py"
Record = dict[str, Any]
Version = tuple[int, int] | None
# Programs that train in one process, and of these one for each order of calls.
ALONE = [name for name, program in PROGRAMS.items() if program.ranks == 1]
OF_EACH_KIND = [*{(PROGRAMS[name].order, PROGRAMS[name].rules, PROGRAMS[name].resumes): name for name in ALONE}.values()]
SECONDS = 100  # within which a process with many programs must have ended


@functools.cache
def after_of(name: str, torch: Version = None) -> dict[str, str]:
    """What the rules make of a program, for projects that allow this torch."""
    texts = dict(PROGRAMS[name].texts)
    for rule in PROGRAMS[name].rules:
        texts = {path: result.after.decode() for path, result in run_on_program(rule, texts, torch=torch).items()}
    return texts


@functools.cache
def after_of_all(name: str) -> dict[str, str]:
    """What all rules make of a program together; a second run must find nothing more."""
    texts = together(PROGRAMS[name].texts)
    assert together(texts) == texts, name
    return texts


def together(texts: Mapping[str, str]) -> dict[str, str]:
    """What one run makes of some files, with the rules of a plain run and that for evaluations."""
    data = {path: text.encode() for path, text in texts.items()}
    project = Project("", data.get, tuple(sorted(data)), Declarations(Range(None)))
    rules = [*registry.select(registry.discover(), (), ()), registry.find("amp-eval")]
    selected = [Selected(transform, transform.options()) for transform in rules]

    def look(paths: Iterable[str], grounds: Grounds) -> dict[str, Answer]:
        seen = project.reading(grounds.texts)
        return {path: advance(path, data[path], seen, selected, EngineSettings(format="off"), grounds) for path in paths}

    grounds = Grounds({path: Neighbour(path) for path in data})
    return {path: result.after.decode() for path, result in settle(look(data, grounds), grounds, look).items()}


def laid(folder: Path, programs: Mapping[str, Mapping[str, str]]) -> str:
    """Programs on the disk, each in a folder of its own; those that go on from a checkpoint find one that the original wrote."""
    for name, texts in programs.items():
        home = folder / name
        home.mkdir(parents=True)
        for path, text in texts.items():
            (home / path).write_text(text)
        if PROGRAMS[name].resumes:
            (home / "start.py").write_text(PROGRAMS[name].texts["main.py"])
    return str(folder)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """What the programs do as their authors wrote them, on the CPU."""
    home = laid(tmp_path_factory.mktemp("programs") / "before", {name: PROGRAMS[name].texts for name in ALONE})
    return on_cpu(home)["before"]


def on_cpu(*words: str) -> dict[str, dict[str, Record]]:
    """The records of programs, by folder and name, on the CPU."""
    records: dict[str, dict[str, Record]] = json.loads(run_on_cpu(RECORDING, *words, timeout=SECONDS))
    return records


def on_gpu(*words: str, capability: str) -> dict[str, dict[str, Record]]:
    """The same on the pretend GPU."""
    skip_on_cuda_build()
    records: dict[str, dict[str, Record]] = json.loads(run_on_fake_gpu(RECORDING, *words, timeout=SECONDS, capability=capability)[0])
    return records


def numbers(printed: str) -> list[float]:
    """The fractions among what a program printed."""
    return [float(word) for word in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", printed)]


def failures(records: Mapping[str, Record]) -> dict[str, str]:
    """The programs that failed, and how."""
    return {name: record["error"] for name, record in records.items() if record["error"]}


def disordered(records: Mapping[str, Record]) -> dict[str, list[str]]:
    """The programs whose calls are not the promised rounds and nothing else."""
    rounds = {name: PROGRAMS[name].order.split() for name in records}
    return {
        name: record["calls"]
        for name, record in records.items()
        if not record["calls"] or record["calls"] != rounds[name] * (len(record["calls"]) // len(rounds[name]))
    }


def far_off(records: Mapping[str, Record], before: Mapping[str, Record], tolerance: float) -> dict[str, float]:
    """The programs whose losses or weights end up farther than this from those of the original, or nowhere else at all."""
    farthest = {}
    for name, record in records.items():
        pairs = [*zip(numbers(record["printed"]), numbers(before[name]["printed"]), strict=True)]
        pairs += zip(record["parameters"], before[name]["parameters"], strict=True)
        farthest[name] = max(abs(one - other) / max(1.0, abs(other)) for one, other in pairs)
    return {name: distance for name, distance in farthest.items() if not 0 < distance <= tolerance}


def not_in(records: Mapping[str, Record], *dtypes: str) -> dict[str, dict[str, int]]:
    """The programs any of whose layers, of which there must be some, give another dtype than these."""
    return {
        name: record["layers"]
        for name, record in records.items()
        if not record["layers"] or any(layer.split(" torch.")[1] not in dtypes for layer in record["layers"])
    }


def wrongly_skipped(records: Mapping[str, Record]) -> dict[str, Any]:
    """The programs that do not skip what an infinite loss gives, and only that, halve the scale once for good, and go on."""
    wrong = {}
    for name, record in records.items():
        scales, steps = record["scales"], record["steps"]
        finite = [gradients for gradients, _ in steps]
        skipped = all(gradients == changed for gradients, changed in steps) and False in finite and finite[-1]
        halved = scales == [1024.0] * scales.count(1024.0) + [512.0] * scales.count(512.0) and scales[-1] == 512.0
        if not (skipped and halved):
            wrong[name] = (steps, scales)
    return wrong


@pytest.mark.parametrize("torch", [(1, 6), (1, 10), (2, 3), None])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_form_is_rewritten_for_every_torch(name: str, torch: Version) -> None:
    """The text is Python, and a second run finds nothing more."""
    after = after_of(name, torch)
    assert after != PROGRAMS[name].texts
    for path, text in after.items():
        compile(text, path, "exec")
    for rule in PROGRAMS[name].rules:
        assert {path: result.after.decode() for path, result in run_on_program(rule, after, torch=torch).items()} == after


def test_without_cuda_all_train_as_before_to_the_last_bit(before: dict[str, Record], tmp_path: Path) -> None:
    """Printed numbers and weights are the same, in the spelling of every torch and with all rules together; calls come in their order."""
    texts: dict[str, dict[str, dict[str, str]]] = {}
    for torch in (None, (1, 10), (1, 6)):
        texts[str(torch)] = {name: after_of(name, torch) for name in ALONE if torch is None or after_of(name, torch) != after_of(name)}
    texts["all rules"] = {name: after_of_all(name) for name in ALONE}
    records = on_cpu(*(laid(tmp_path / version, programs) for version, programs in texts.items()))
    assert not failures(before)
    for version in texts:
        assert not failures(records[version])
        for name, record in records[version].items():
            assert (record["printed"], record["parameters"]) == (before[name]["printed"], before[name]["parameters"]), (name, version)
            assert record["parameters"], name
        assert not disordered(records[version])
        assert not not_in(records[version], "float32")


def check_nearly(records: Mapping[str, Record], before: Mapping[str, Record], tolerance: float, dtype: str) -> None:
    """Check that programs make the promised calls, with all layers in this dtype, and end up near the original."""
    assert not failures(records)
    assert not disordered(records)
    assert not not_in(records, dtype)
    assert not far_off(records, before, tolerance)


def check_overflow(records: Mapping[str, Record]) -> None:
    """Check what programs do in which one scaled loss was infinite."""
    assert not failures(records)
    assert not wrongly_skipped(records)


def both(folder: Path, plain: Iterable[str], overflow: Iterable[str]) -> list[str]:
    """The recorder's words for two folders of rewritten programs, of which those of the second overflow."""
    homes = {kind: laid(folder / kind, {n: after_of(n) for n in names}) for kind, names in (("plain", plain), ("overflow", overflow))}
    return [homes["plain"], "--overflow", homes["overflow"]]


def test_in_bfloat16_on_the_cpu_all_train_nearly_as_before(before: dict[str, Record], tmp_path: Path) -> None:
    """With a scaler that is switched on; an infinite loss skips its step and halves the scale, and the next step goes on."""
    names = [name for name in ALONE if PROGRAMS[name].half_on_host]
    records = on_cpu("--bfloat16", *both(tmp_path, names, names))
    check_nearly(records["plain"], before, 0.05, "bfloat16")
    check_overflow(records["overflow"])
    moved = [Counter(records["overflow"][f"H {name}"]["calls"]) for name in ("a schedule per step", "a schedule of one cycle")]
    assert [calls["update"] - calls["schedule"] for calls in moved] == [0, 1], "only a schedule that counts steps waits for a skipped one"


def test_on_a_gpu_in_float16_all_train_nearly_as_before(before: dict[str, Record], tmp_path: Path) -> None:
    """No operator is banned by CUDA's lists, and every layer computes in float16; old torch's spelling does the same."""
    old = laid(tmp_path / "old", {name: after_of(name, (1, 6)) for name in ("A clipped", "a loop in another file")})
    records = on_gpu(old, laid(tmp_path / "after", {name: after_of(name) for name in ALONE}), capability="7.5")
    for version in ("after", "old"):
        check_nearly(records[version], before, 0.005, "float16")


def test_on_a_gpu_an_infinite_loss_skips_its_step_only(before: dict[str, Record], tmp_path: Path) -> None:
    """The scale is halved and the next step goes on; without it, all rules together train nearly as before."""
    together = laid(tmp_path / "all rules", {name: after_of_all(name) for name in OF_EACH_KIND})
    overflow = laid(tmp_path / "overflow", {name: after_of(name) for name in OF_EACH_KIND})
    records = on_gpu(together, "--overflow", overflow, capability="7.5")
    check_nearly(records["all rules"], before, 0.005, "float16")
    check_overflow(records["overflow"])


def test_on_a_gpu_that_has_bfloat16_they_train_in_it(before: dict[str, Record], tmp_path: Path) -> None:
    """One program of each kind; the threads of DataParallel alone keep to float16."""
    names = {*OF_EACH_KIND, "J parallel"}
    records = on_gpu(laid(tmp_path / "after", {name: after_of(name) for name in names}), capability="8.0")["after"]
    check_nearly({"J parallel": records.pop("J parallel")}, before, 0.005, "float16")
    check_nearly(records, before, 0.05, "bfloat16")


def test_two_ranks_skip_the_same_steps(tmp_path: Path) -> None:
    """What is infinite in one rank is infinite in all, as their gradients are averaged, and their weights stay alike."""
    (name,) = set(PROGRAMS) - set(ALONE)
    before = laid(tmp_path / "before", {name: PROGRAMS[name].texts})
    records = json.loads(run_two_processes(RECORDING, "--bfloat16", before, *both(tmp_path, [name], [name])))
    assert not failures(records["before"])
    check_nearly(records["plain"], records["before"], 0.05, "bfloat16")
    check_overflow(records["overflow"])
    assert records["overflow"][name]["printed"].endswith("alike\n")
