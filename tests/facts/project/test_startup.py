"""Startup: where a script's program makes its first network."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of

HEAD = "import torch\nfrom torch import nn\n\n\nclass Net(nn.Linear):\n    pass\n\n\n"
MAIN = "def main():\n    print()\n    net = Net(2, 2)\n\n\n"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        pytest.param("x = 1\nnet = Net(2, 2)\n", "net = Net(2, 2)", id="a plain script"),
        pytest.param("loss = nn.MSELoss()\nnet = Net(2, 2)\n", "net = Net(2, 2)", id="a loss is no network"),
        pytest.param(MAIN + "if __name__ == '__main__':\n    main()\n", "net = Net(2, 2)", id="the function of the main guard"),
        pytest.param("if __name__ == '__main__':\n    net = Net(2, 2)\n", "net = Net(2, 2)", id="the main guard itself"),
        pytest.param(MAIN + "main()\nmain()\n", "main()", id="a function that runs twice"),
        pytest.param("for seed in (1, 2):\n    net = Net(2, 2)\n", "for seed in (1, 2):", id="before the loop that makes it"),
        pytest.param("def build():\n    return Net(2, 2)\n", None, id="a file to be imported"),
        pytest.param(MAIN + "if __name__ == '__main__':\n    print()\n", None, id="a script without a network"),
    ],
)
def test_the_place_is_in_front_of_the_first_network_that_the_script_makes(text: str, place: str | None) -> None:
    """What runs before it needs no switch."""
    found = facts_of(HEAD + text).startup.before()
    assert (None if found is None else ast.unparse(found).splitlines()[0]) == place
