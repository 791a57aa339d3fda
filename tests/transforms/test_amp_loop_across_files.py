"""amp-loop where the optimizer is made in another file than the loop: the scaler is handed over, in all files or in none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.running import run_on_cpu, run_on_fake_gpu, skip_on_cuda_build
from torchfix.result import Outcome, Place, Result
from torchfix.testing import check_program, run_on_program

RULE = "amp-loop"

ENGINE = """\
from torch import nn


def train_one_epoch(model, loader, criterion, optimizer, device):
    model.train()
    total = 0.0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        total += loss.item()
    return total
"""
ENGINE_AFTER = """\
from torch import nn
import torch


def train_one_epoch(model, loader, criterion, optimizer, device, scaler):
    model.train()
    total = 0.0
    use_amp = device.type == "cuda"
    amp_dtype = torch.bfloat16 if use_amp and not scaler.is_enabled() else torch.float16
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=amp_dtype, enabled=use_amp):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        total += loss.item()
    return total
"""
NETWORK = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x):
        return self.layers(x)


def batches():
    generator = torch.Generator().manual_seed(5)
    for _ in range(8):
        yield torch.randn(4, 8, generator=generator), torch.randint(0, 3, (4,), generator=generator)
"""
MAIN = """\
import torch
from torch import nn

from engine import train_one_epoch
from network import Net, batches


def main():
    torch.manual_seed(3)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        print(repr(train_one_epoch(model, batches(), nn.CrossEntropyLoss(), optimizer, device)))
    print(repr(sum(parameter.sum().item() for parameter in model.parameters())))


if __name__ == "__main__":
    main()
"""
MADE = '    scaler = torch.amp.GradScaler("cuda", enabled=device.type == "cuda" and torch.cuda.get_device_capability()[0] < 8)\n'
OPTIMIZER = "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
CALL = "nn.CrossEntropyLoss(), optimizer, device)"


def handed(text: str) -> str:
    """A calling script with its scaler made and handed over."""
    return text.replace(OPTIMIZER, OPTIMIZER + MADE).replace(CALL, CALL[:-1] + ", scaler=scaler)")


PROGRAM = {"engine.py": ENGINE, "network.py": NETWORK, "main.py": MAIN}
PROGRAM_AFTER = {"engine.py": ENGINE_AFTER, "network.py": NETWORK, "main.py": handed(MAIN)}
ELEMENT = MAIN.replace("optimizer = ", "both = [").replace("lr=0.1)", "lr=0.1)]").replace("optimizer, device", "both[0], device")
CLIPPING = ("        scaler.unscale_(optimizer)\n", "        nn.utils.clip_grad_norm_(model.parameters(), 0.5)\n")
UNCLIPPED, UNCLIPPED_AFTER = (text.replace(CLIPPING[0], "").replace(CLIPPING[1], "") for text in (ENGINE, ENGINE_AFTER))


def changed(texts: Mapping[str, str], **arguments: object) -> dict[str, str]:
    """What becomes of a program in which something changes."""
    results = run_on_program(RULE, texts, **arguments)  # type: ignore[arg-type]
    assert any(result.outcome is Outcome.CHANGED for result in results.values()), words(results)
    return {path: result.after.decode() for path, result in results.items()}


def words(results: Mapping[str, Result]) -> list[str]:
    """The reasons of what is held."""
    reasons = (note.reason for path in sorted(results) for note in results[path].notes)
    return [f"{reason.code}: {reason.text}" for reason in reasons if reason is not None]


def held(texts: Mapping[str, str]) -> list[str]:
    """The codes of what is held in a program in which nothing changes."""
    results = run_on_program(RULE, texts)
    assert {result.outcome for result in results.values()} == {Outcome.CLEAN}
    return [reason.partition(":")[0] for reason in words(results)]


def test_a_loop_that_nobody_runs_is_no_finding() -> None:
    """Without a caller there is no device, and nothing to say."""
    assert held({"engine.py": ENGINE, "network.py": NETWORK}) == []


@pytest.mark.parametrize(
    ("texts", "code"),
    [
        pytest.param(
            {**PROGRAM, "main.py": MAIN + "\n\nsteps = [train_one_epoch]\n"}, "optimizer-not-seen", id="a caller hands the function on"
        ),
        pytest.param(
            {**PROGRAM, "engine.py": ENGINE.replace("def train", "@timed\ndef train")}, "optimizer-not-seen", id="it is decorated"
        ),
        pytest.param(
            {**PROGRAM, "engine.py": ENGINE.replace("optimizer, device):", "optimizer, device, *more):")},
            "optimizer-elsewhere",
            id="more parameters follow",
        ),
        pytest.param(
            {
                **PROGRAM,
                "main.py": MAIN.replace("optimizer = ", "both = [").replace("lr=0.1)", "lr=0.1)]").replace("optimizer, d", "both[0], d"),
            },
            "optimizer-elsewhere",
            id="an element is handed on",
        ),
        pytest.param(
            {**PROGRAM, "main.py": MAIN.replace("optimizer, device)", "torch.optim.SGD(model.parameters(), lr=1), device)")},
            "optimizer-elsewhere",
            id="it has no name at the call",
        ),
        pytest.param(
            {
                **PROGRAM,
                "main.py": MAIN.replace("    print(repr(sum", "    other = torch.optim.Adam(model.parameters())\n    print(repr(sum")
                + "    train_one_epoch(model, batches(), nn.CrossEntropyLoss(), other, device)\n",
            },
            "optimizer-not-seen",
            id="a call out of sight of its names",
        ),
        pytest.param(
            {**PROGRAM, "main.py": MAIN.replace(OPTIMIZER, f"    # torchfix: ignore[amp-loop]\n{OPTIMIZER}")},
            "other-file-suppressed",
            id="a comment forbids it",
        ),
    ],
)
def test_what_cannot_follow_the_optimizer_is_held(texts: Mapping[str, str], code: str) -> None:
    """Every caller must be seen, and have an optimizer with a name of its own; then nothing changes anywhere."""
    assert held(texts) == [code]


def test_two_optimizers_of_one_function_are_held() -> None:
    """Two scalers of one name would be taken for each other."""
    second = (
        "    other = torch.optim.Adam(model.parameters())\n    train_one_epoch(model, batches(), nn.CrossEntropyLoss(), other, device)\n"
    )
    assert held({**PROGRAM, "main.py": MAIN.replace("    print(repr(sum", second + "    print(repr(sum")}) == ["optimizer-elsewhere"]


def test_the_scaler_is_made_beside_the_optimizer_and_handed_over() -> None:
    """The loop's file gets the parameter, the caller's the scaler; the finding stands at the loop and names the caller."""
    (note,) = check_program(RULE, PROGRAM, PROGRAM_AFTER)

    assert (note.line, note.effects) == (7, ("numerics",))
    assert [place.path for place in note.elsewhere] == ["main.py", "main.py"]
    assert note.elsewhere[0] == Place("main.py", 12, 4, 12, 59)


def test_two_scripts_that_share_the_loop_make_a_scaler_each() -> None:
    """Every optimizer has its own; the function is changed once."""
    second = MAIN.replace("from engine import train_one_epoch", "import engine").replace("train_one_epoch(", "engine.train_one_epoch(")
    second = second.replace("range(2)", "range(3)")

    (note,) = check_program(
        RULE,
        {**PROGRAM, "engine.py": UNCLIPPED, "second.py": second},
        {**PROGRAM_AFTER, "engine.py": UNCLIPPED_AFTER, "second.py": handed(second)},
    )

    assert [place.path for place in note.elsewhere] == ["main.py", "main.py", "second.py", "second.py"]


def test_two_callers_in_one_file_make_a_scaler_each() -> None:
    """Each of two functions has an optimizer and a scaler of its own."""
    text = MAIN.replace("if __name__", MAIN[MAIN.index("def main") : MAIN.index("if __name__")].replace("main", "again") + "if __name__")

    after = {**PROGRAM_AFTER, "engine.py": UNCLIPPED_AFTER, "main.py": handed(text)}
    check_program(RULE, {**PROGRAM, "engine.py": UNCLIPPED, "main.py": text}, after)


def test_clipping_for_two_optimizers_is_held() -> None:
    """Which network goes with which optimizer is not told apart by caller, so that one might be clipped while it is scaled."""
    assert held({**PROGRAM, "second.py": MAIN}) == ["clip-parameters"]


def test_a_scaler_goes_through_functions_of_several_files() -> None:
    """Each function on the way gets the parameter, in whatever file it stands."""
    trainer = """\
from engine import train_one_epoch


def fit(model, loader, criterion, optimizer, device, rounds=1):
    for _ in range(rounds):
        result = train_one_epoch(model, loader, criterion, optimizer, device)
    return result
"""
    main = MAIN.replace("from engine import train_one_epoch", "from trainer import fit").replace("train_one_epoch", "fit")
    expected = trainer.replace("rounds=1)", "rounds=1, scaler=None)").replace("optimizer, device)\n", "optimizer, device, scaler=scaler)\n")

    (note,) = check_program(
        RULE,
        {**PROGRAM, "main.py": main, "trainer.py": trainer},
        {**PROGRAM_AFTER, "main.py": handed(main), "trainer.py": expected},
    )

    assert [place.path for place in note.elsewhere] == ["main.py", "main.py", "trainer.py", "trainer.py"]


def test_two_loops_share_the_scaler_of_their_optimizer() -> None:
    """The caller makes one scaler and hands it to both functions."""
    engine = ENGINE + "\n\n" + ENGINE[ENGINE.index("def ") :].replace("train_one_epoch", "finetune")
    main = MAIN.replace("import train_one_epoch", "import finetune, train_one_epoch").replace(
        "    print(repr(sum", "    finetune(model, batches(), nn.CrossEntropyLoss(), optimizer, device)\n    print(repr(sum"
    )
    expected = ENGINE_AFTER + "\n\n" + ENGINE_AFTER[ENGINE_AFTER.index("def ") :].replace("train_one_epoch", "finetune")

    notes = check_program(
        RULE, {**PROGRAM, "engine.py": engine, "main.py": main}, {**PROGRAM_AFTER, "engine.py": expected, "main.py": handed(main)}
    )

    assert len(notes) == 2


def test_a_trainer_keeps_the_scaler_where_it_keeps_the_optimizer() -> None:
    """An attribute of an instance has its companion there, and hands it to a function of another file."""
    main = """\
import torch
from torch import nn

from engine import train_one_epoch
from network import Net, batches


class Trainer:
    def __init__(self):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = Net().to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def run(self):
        train_one_epoch(self.model, batches(), nn.CrossEntropyLoss(), self.optimizer, self.device)


Trainer().run()
"""
    after = changed({**PROGRAM, "main.py": main})
    assert after["engine.py"] == ENGINE_AFTER
    assert "        self.scaler = torch.amp.GradScaler(" in after["main.py"]
    assert "self.optimizer, self.device, scaler=self.scaler)" in after["main.py"]


def test_an_optimizer_that_another_file_makes_has_its_scaler_where_it_gets_its_name() -> None:
    """A factory's result is named in the caller, and that is where the scaler is made."""
    main = MAIN.replace("torch.optim.SGD(model.parameters(), lr=0.1)", "build(model)").replace(
        "from network", "from setup import build\nfrom network"
    )
    setup = "import torch\n\n\ndef build(model):\n    return torch.optim.SGD(model.parameters(), lr=0.1)\n"

    after = changed({**PROGRAM, "main.py": main, "setup.py": setup})

    assert after["setup.py"] == setup
    assert f"    optimizer = build(model)\n{MADE}" in after["main.py"]


def test_a_name_that_one_of_the_files_uses_is_used_in_none() -> None:
    """The parameter and the variable have one name, free in all files."""
    main = MAIN.replace("def main():\n", "def main():\n    scaler = print\n")

    after = changed({**PROGRAM, "main.py": main})

    assert "optimizer, device, grad_scaler):" in after["engine.py"]
    assert "    grad_scaler = torch.amp.GradScaler(" in after["main.py"]
    assert "device, grad_scaler=grad_scaler)" in after["main.py"]


def test_a_device_that_the_caller_gives_as_a_word_is_asked_by_the_machine() -> None:
    """What is no variable where the scaler is made cannot be read there."""
    main = MAIN.replace("optimizer, device)", 'optimizer, "cuda")').replace(".to(device)", '.to("cuda")')

    after = changed({**PROGRAM, "main.py": main})

    assert "enabled=torch.cuda.is_available() and torch.cuda.get_device_capability()[0] < 8)\n" in after["main.py"]
    assert '    use_amp = torch.device(device).type == "cuda"\n' in after["engine.py"]


def test_a_file_without_torch_imports_it() -> None:
    """A caller whose optimizer comes from a factory needs the name."""
    main = MAIN.replace("torch.optim.SGD(model.parameters(), lr=0.1)", "build(model)").replace(
        "import torch\nfrom torch import nn\n", "from torch import nn\n"
    )
    main = main.replace("    torch.manual_seed(3)\n", "").replace('torch.device("cuda" if torch.cuda.is_available() else "cpu")', "place()")
    main = main.replace("from network", "from setup import build, place\nfrom network")
    setup = "import torch\n\n\ndef build(model):\n    return torch.optim.SGD(model.parameters(), lr=0.1)\n\n\n"
    setup += 'def place():\n    return torch.device("cuda" if torch.cuda.is_available() else "cpu")\n'

    after = changed({**PROGRAM, "main.py": main, "setup.py": setup})

    assert "\nimport torch\n" in f"\n{after['main.py']}"
    compile(after["main.py"], "main.py", "exec")


def test_the_scalers_state_joins_the_optimizers_where_the_caller_saves_it() -> None:
    """Checkpoints of the other file hold it beside the optimizer's, and files without it still load."""
    main = MAIN.replace(
        "    for epoch",
        '    state = torch.load("last.pt")\n    optimizer.load_state_dict(state["optimizer"])\n    for epoch',
    ).replace(
        "    print(repr(sum",
        '    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")\n    print(repr(sum',
    )

    results = run_on_program(RULE, {**PROGRAM, "main.py": main})
    text = results["main.py"].after.decode()

    assert '"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}' in text
    assert '    if state.get("scaler"):\n        scaler.load_state_dict(state["scaler"])\n' in text
    (note,) = results["engine.py"].notes
    assert note.effects == ("numerics", "checkpoint")


# What the rewritten programs do ---------------------------------------------------------------------------------------


def laid(folder: Path, texts: Mapping[str, str]) -> Path:
    """A program on the disk; the path of its main script."""
    folder.mkdir()
    for path, text in texts.items():
        (folder / path).write_text(text)
    return folder / "main.py"


def numbers(printed: str) -> list[float]:
    return [float(line) for line in printed.splitlines()]


def test_on_the_cpu_the_rewritten_program_trains_bit_for_bit_as_before(tmp_path: Path) -> None:
    """With autocast and scaler switched off nothing is different."""
    assert run_on_cpu(laid(tmp_path / "after", PROGRAM_AFTER)) == run_on_cpu(laid(tmp_path / "before", PROGRAM))


@pytest.mark.parametrize("capability", [pytest.param("7.5", id="float16"), pytest.param("8.0", id="bfloat16")])
def test_on_a_gpu_the_rewritten_program_trains_in_half_precision(capability: str, tmp_path: Path) -> None:
    """It learns nearly the same, and clipping sees true gradients."""
    skip_on_cuda_build()
    before = numbers(run_on_fake_gpu(laid(tmp_path / "before", PROGRAM), capability=capability)[0])
    after = numbers(run_on_fake_gpu(laid(tmp_path / "after", PROGRAM_AFTER), capability=capability)[0])
    assert after == pytest.approx(before, rel=0.03, abs=0.03)
    assert after != before


def test_the_structure_also_trains_in_bfloat16_on_the_cpu(tmp_path: Path) -> None:
    """With the region turned to the CPU and its scaler switched on, clipped steps stay close to float32."""
    engine = ENGINE_AFTER.replace('use_amp = device.type == "cuda"', "use_amp = True")
    engine = engine.replace('torch.autocast("cuda", dtype=amp_dtype', 'torch.autocast("cpu", dtype=torch.bfloat16')
    main = handed(MAIN).replace(MADE, '    scaler = torch.amp.GradScaler("cpu")\n')
    before = numbers(run_on_cpu(laid(tmp_path / "before", PROGRAM)))
    after = numbers(run_on_cpu(laid(tmp_path / "after", {**PROGRAM_AFTER, "engine.py": engine, "main.py": main})))
    assert after == pytest.approx(before, rel=0.03, abs=0.03)
    assert after != before
