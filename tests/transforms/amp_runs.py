"""Programs before and after they are rewritten for mixed precision, run without CUDA, in bfloat16 there, and on the pretend GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.running import ROOT, run_on_cpu, run_on_fake_gpu, skip_on_cuda_build

RECORDING = ROOT / "tests" / "recording.py"


def run_before_and_after(programs: Mapping[str, tuple[str, str]], folder: Path, tolerance: float = 0.06) -> None:
    """Check that rewritten programs train as before.

    Without CUDA each prints the same and ends with the same weights, to the last bit, steps through its scaler only, and ends
    with an update; in half precision its calls come in the same order, every layer is half, and the weights end up near.

    Args:
        programs: the texts before and after, by name.
        folder: an empty folder.
        tolerance: how far a weight may end from where it was.
    """
    for name, texts in programs.items():
        for version, text in zip(("before", "after"), texts):
            (folder / version / name).mkdir(parents=True)
            (folder / version / name / "main.py").write_text(text)
    before, after = str(folder / "before"), str(folder / "after")
    plain = json.loads(run_on_cpu(RECORDING, before, after, timeout=240))
    calls: dict[str, list[str]] = {}
    for name, old in plain["before"].items():
        new = plain["after"][name]
        assert not old["error"] and not new["error"], (name, new["error"])
        assert old["printed"] and (new["printed"], new["parameters"]) == (old["printed"], old["parameters"]), name
        calls[name] = new["calls"]
        assert "step" in calls[name] and "plain step" not in calls[name] and calls[name][-1] == "update", name
        assert calls[name].count("scale") == calls[name].count("backward") > 0, name
    _check_close(_recorded(run_on_cpu(RECORDING, "--bfloat16", after, timeout=240)), plain["before"], "bfloat16", tolerance)
    skip_on_cuda_build()
    for capability, dtype in (("7.5", "float16"), ("8.0", "bfloat16")):
        records = _recorded(run_on_fake_gpu(RECORDING, after, capability=capability, timeout=240)[0])
        assert {name: record["calls"] for name, record in records.items()} == calls
        _check_close(records, plain["before"], dtype, tolerance)


def _recorded(printed: str) -> dict[str, dict[str, Any]]:
    records: dict[str, dict[str, Any]] = json.loads(printed)["after"]
    return records


def _check_close(records: dict[str, dict[str, Any]], before: dict[str, dict[str, Any]], dtype: str, tolerance: float) -> None:
    """Check that every layer gave this dtype, and that the weights ended near those of another run."""
    for name, record in records.items():
        assert not record["error"], (name, record["error"])
        assert record["layers"] and all(layer.endswith(f"torch.{dtype}") for layer in record["layers"]), (name, record["layers"])
        assert record["parameters"] == pytest.approx(before[name]["parameters"], abs=tolerance), name
