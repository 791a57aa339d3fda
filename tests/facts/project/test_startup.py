"""Startup: where a script's program makes its first network."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of

HEAD = "import torch\nfrom torch import nn\n\n\nclass Net(nn.Linear):\n    pass\n\n\n"
MAIN = "def main():\n    print()\n    net = Net(2, 2)\n\n\n"


TRAINER = "class Trainer:\n    def __init__(self):\n        self.build()\n\n    def build(self):\n        self.net = Net(2, 2)\n\n\n"
STEP = "optimizer = torch.optim.SGD([], lr=1)\n\n\ndef train(loss):\n    loss.backward()\n    optimizer.step()\n\n\ndef test():\n    pass\n"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        pytest.param("x = 1\nnet = Net(2, 2)\n", "net = Net(2, 2)", id="a plain script"),
        pytest.param("loss = nn.MSELoss()\nnet = Net(2, 2)\n", "net = Net(2, 2)", id="a loss is no network"),
        pytest.param(MAIN + "if __name__ == '__main__':\n    main()\n", "net = Net(2, 2)", id="the function of the main guard"),
        pytest.param("if __name__ == '__main__':\n    net = Net(2, 2)\n", "net = Net(2, 2)", id="the main guard itself"),
        pytest.param(MAIN + "main()\nmain()\n", "main()", id="a function that runs twice"),
        pytest.param("for seed in (1, 2):\n    net = Net(2, 2)\n", "for seed in (1, 2):", id="before the loop that makes it"),
        pytest.param(TRAINER + "if __name__ == '__main__':\n    trainer = Trainer()\n", "trainer = Trainer()", id="a class that makes it"),
        pytest.param(MAIN + "import fire\nfire.Fire(main)\n", "net = Net(2, 2)", id="a function that a library calls"),
        pytest.param(
            MAIN + "from torch import multiprocessing as mp\nif __name__ == '__main__':\n    mp.spawn(main, nprocs=2)\n",
            "net = Net(2, 2)",
            id="in each process that is spawned",
        ),
        pytest.param(MAIN + "for seed in (1, 2):\n    main()\n", "net = Net(2, 2)", id="a function that a loop calls"),
        pytest.param("with torch.cuda.device(0):\n    print()\n    net = Net(2, 2)\n", "net = Net(2, 2)", id="inside a with"),
        pytest.param("def first():\n    second()\n\n\ndef second():\n    first()\n\n\nfirst()\n", None, id="functions in a circle"),
        pytest.param("def build():\n    return Net(2, 2)\n", None, id="a file to be imported"),
        pytest.param(MAIN + "if __name__ == '__main__':\n    print()\n", None, id="a script without a network"),
    ],
)
def test_the_place_is_in_front_of_the_first_network_that_the_script_makes(text: str, place: str | None) -> None:
    """What runs before it needs no switch."""
    found = facts_of(HEAD + text).startup.before()
    assert (None if found is None else ast.unparse(found).splitlines()[0]) == place


def test_code_of_another_file_is_followed() -> None:
    """The switch stands in the script, in front of the call."""
    files = {"build.py": f"{HEAD}def build():\n    return Net(2, 2)\n"}
    place = facts_of("import build\n\nprint()\nnet = build.build()\n", modules=files).startup.before()
    assert place is not None
    assert ast.unparse(place) == "net = build.build()"


@pytest.mark.parametrize(
    ("call", "trains"),
    [
        pytest.param("work.train(net(1))", True, id="a script that trains"),
        pytest.param("work.test()", False, id="a script that only evaluates with the same file"),
    ],
)
def test_a_script_trains_where_it_may_run_code_that_does(call: str, trains: bool) -> None:
    """A file that it imports may hold code that it never runs."""
    files = {"work.py": f"import torch\n\n{STEP}"}
    place = facts_of(f"{HEAD}import work\n\nnet = Net(2, 2)\n{call}\n", modules=files).startup.before_training()
    assert (place is not None) is trains


@pytest.mark.parametrize(
    ("main", "place"),
    [
        pytest.param("net = Net(2, 2)\nmp.Process(target=train, args=(net,)).start()\n", None, id="made by the parent, trained by a child"),
        pytest.param("mp.spawn(worker, nprocs=2)\n", "net = Net(2, 2)", id="made and trained by each child"),
        pytest.param("net = Net(2, 2)\nmp.Process(target=test).start()\ntrain(net(1))\n", "net = Net(2, 2)", id="trained by the parent"),
    ],
)
def test_processes_that_train_need_their_own_switch(main: str, place: str | None) -> None:
    """A switch of the parent does not reach a child that is spawned."""
    worker = "def worker(rank):\n    net = Net(2, 2)\n    train(net(1))\n\n\n"
    guarded = "if __name__ == '__main__':\n    " + main.rstrip().replace("\n", "\n    ")
    found = facts_of(f"{HEAD}import torch.multiprocessing as mp\n{STEP}\n\n{worker}{guarded}\n").startup.before_training()
    assert (None if found is None else ast.unparse(found)) == place
