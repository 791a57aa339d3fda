from __future__ import annotations

import pytest

from tests.facts.reading import facts_of

HEAD = "import os\nimport torch\nfrom torch import nn\n"
IN_MAIN = HEAD + "def main():\n    {}\n\nif __name__ == '__main__':\n    main()\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('x.to("cuda")', []),
        ("x.cuda()", []),
        ("x.to(torch.float16)", []),
        ('print("see cuda:0 and cuda:1")', []),
        ('x.to("cuda:0")', [(0, None)]),
        ('torch.device("cuda:0")', [(0, None)]),
        ("x.to(0)", [(0, None)]),
        ("torch.device(0)", [(0, None)]),
        ("x.cuda(0)", [(0, 0)]),
        ("x.cuda(device=1)", [(1, "device")]),
        ('torch.device("cuda", 0)', [(0, 1)]),
        ('torch.device("cuda", index=0)', [(0, "index")]),
    ],
)
def test_numbers_of_gpus(text: str, expected: list[tuple[int, int | str | None]]) -> None:
    """Each literal number is found, with the argument to drop or none where "cuda" takes its place."""
    numbers = facts_of(IN_MAIN.format(text)).placement.numbers
    assert [(number.index, number.argument if number.call else None) for number in numbers] == expected


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('x.to("cuda:1")', "several-devices"),
        ('x.to("cuda:" + str(n))', "device-by-option"),
        ('x.to(f"cuda:{n}")', "device-by-option"),
        ("x.cuda(args.gpu)", "device-by-option"),
        ('x.to("mps")', "other-devices"),
        ("torch.backends.mps.is_available()", "other-devices"),
        ("with torch.cuda.device(0): pass", "device-block"),
        ('os.environ["CUDA_VISIBLE_DEVICES"] = "1"', "visible-devices"),
    ],
)
def test_what_keeps_processes_from_their_own_gpus(text: str, code: str) -> None:
    """A GPU that is computed, chosen late or of another kind cannot become each process's own."""
    assert code in [obstacle.code for obstacle in facts_of(IN_MAIN.format(text)).placement.obstacles()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('os.environ["CUDA_VISIBLE_DEVICES"] = "1"', []),
        ('device = torch.device("cuda:0")', []),
        ("def f(x):\n    return x.cuda()", []),
        ("loss = nn.MSELoss().cuda()", ["placed-on-import"]),
    ],
)
def test_what_may_happen_on_import(text: str, expected: list[str]) -> None:
    """Before the processes have taken their GPUs nothing may be moved to one."""
    assert [obstacle.code for obstacle in facts_of(HEAD + text).placement.obstacles()] == expected
