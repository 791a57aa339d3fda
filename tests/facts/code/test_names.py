from __future__ import annotations

import pytest

from tests.facts.reading import facts_of, node


def meaning(text: str, name: str, occurrence: int = 0, modules: dict[str, str] | None = None) -> str | None:
    facts = facts_of(text, modules=modules)
    return facts.names.qualified(node(facts, name, occurrence))


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        pytest.param("import torch\ntorch.zeros(2)", "torch.zeros", "torch.zeros", id="plain"),
        pytest.param("import torch as th\nth.zeros(2)", "th.zeros", "torch.zeros", id="alias"),
        pytest.param("from torch import nn\nnn.Linear(1, 1)", "nn.Linear", "torch.nn.Linear", id="from"),
        pytest.param("import torch.nn.functional as F\nF.relu(x)", "F.relu", "torch.nn.functional.relu", id="submodule alias"),
        pytest.param("from torch.utils.data import DataLoader as DL\nDL(ds)", "DL", "torch.utils.data.DataLoader", id="renamed"),
        pytest.param(
            "import torch.utils.data.dataloader as d\nd.DataLoader(ds)",
            "d.DataLoader",
            "torch.utils.data.DataLoader",
            id="where it is defined",
        ),
        pytest.param(
            "from torch.nn.parallel import DataParallel\nDataParallel(n)", "DataParallel", "torch.nn.DataParallel", id="second home"
        ),
        pytest.param("from torch.optim.adam import Adam\nAdam(p)", "Adam", "torch.optim.Adam", id="optimizer module"),
        pytest.param("from torch import nn\nDP = nn.DataParallel\nDP(n)", "DP", "torch.nn.DataParallel", id="plain alias by assignment"),
        pytest.param(
            "from torch.utils import data\nl = data.DataLoader(d)\nfor data in l: pass",
            "data.DataLoader",
            "torch.utils.data.DataLoader",
            id="rebound later",
        ),
    ],
)
def test_imported_names_have_their_documented_meaning(text: str, name: str, expected: str) -> None:
    """However a torch name was imported, it means the name of torch's documentation."""
    assert meaning(text, name, -1 if "DP = " in text else 0) == expected


@pytest.mark.parametrize(
    ("text", "name"),
    [
        pytest.param("import torch\ndef f(torch): return torch.zeros(1)", "torch.zeros", id="parameter"),
        pytest.param(
            "from torch.utils.data import DataLoader\ndef f(ds):\n    DataLoader = list\n    return DataLoader(ds)",
            "DataLoader",
            id="local",
        ),
        pytest.param(
            "import torch\ndef g(x):\n    global torch\n    torch = x\ndef f(): return torch.zeros(1)", "torch.zeros", id="global rebinding"
        ),
        pytest.param("import torch\n[torch.zeros(1) for torch in things]", "torch.zeros", id="comprehension target"),
        pytest.param(
            "try:\n    import torch\nexcept ImportError:\n    torch = None\ndef f(): return torch.zeros(1)",
            "torch.zeros",
            id="None when missing",
        ),
        pytest.param(
            "if x:\n    from torch.utils.data import DataLoader\nelse:\n    from fakes import DataLoader\nDataLoader(d)",
            "DataLoader",
            id="two origins",
        ),
        pytest.param("from torch.nn import DataParallel\nfrom unknown import *\nDataParallel(n)", "DataParallel", id="unknown star behind"),
        pytest.param("import torch\ndel torch\ntorch.zeros(1)", "torch.zeros", id="deleted"),
    ],
)
def test_shadowed_names_are_no_torch_names(text: str, name: str) -> None:
    """A name that may mean something else at this place is no torch name (field cases F81 and F83)."""
    assert not (meaning(text, name) or "").startswith("torch")


def test_try_import_with_agreeing_origins_is_known() -> None:
    """Two bindings that agree are one meaning."""
    assert meaning("try:\n    import torch\nexcept ImportError:\n    import torch\ntorch.ones(1)", "torch.ones") == "torch.ones"


def test_star_import_of_a_seen_module_hides_only_what_it_exports() -> None:
    """A project file that exports no DataLoader cannot hide the import above it."""
    text = "from torch.utils.data import DataLoader\nfrom models import *\nDataLoader(d)"
    assert meaning(text, "DataLoader", modules={"models.py": "import torch\nclass Net: pass\n"}) == "torch.utils.data.DataLoader"
    assert meaning(text, "DataLoader", modules={"models.py": "class DataLoader: pass\n"}) is None


def test_star_imports_in_a_circle_end() -> None:
    """Two files that import everything from each other do not make the question endless."""
    assert (
        meaning(
            "from a import *\nfrom torch import nn\nnn.ReLU()",
            "nn.ReLU",
            modules={"a.py": "from b import *\n", "b.py": "from a import *\n"},
        )
        == "torch.nn.ReLU"
    )


def test_method_with_a_library_name_is_no_library_function() -> None:
    """``self.DataLoader`` is the class's own."""
    text = "from torch.utils.data import DataLoader\nclass M:\n    def DataLoader(self, d): ...\n    def f(self, d): self.DataLoader(d)"
    assert meaning(text, "self.DataLoader") is None


def test_class_attribute_is_not_seen_from_methods() -> None:
    """The body of a class is no scope for its methods, so the module's import counts there."""
    text = "import torch\nclass M:\n    torch = None\n    def f(self): return torch.zeros(1)"
    assert meaning(text, "torch.zeros") == "torch.zeros"


def test_definition_in_another_file_is_found() -> None:
    """A class is followed through the import that brought it, re-exports included."""
    facts = facts_of(
        "from models import Net\nNet()", modules={"models/__init__.py": "from .net import Net\n", "models/net.py": "class Net: pass\n"}
    )
    definition = facts.names.definition(node(facts, "Net"))
    assert definition is not None
    assert definition.facts.path == "models/net.py"


def test_definition_through_a_module_name_is_found() -> None:
    """``net.Net`` is followed into the file that the module name means."""
    facts = facts_of("import net\nnet.Net()", modules={"net.py": "class Net: pass\n"})
    definition = facts.names.definition(node(facts, "net.Net"))
    assert definition is not None
    assert definition.node.name == "Net"


def test_fresh_name_avoids_every_use_in_the_file() -> None:
    """A name is taken when any scope binds or reads it (field case F89)."""
    facts = facts_of("from sklearn.preprocessing import StandardScaler\nscaler = StandardScaler()\n")
    assert facts.names.fresh("scaler", "grad_scaler") == "grad_scaler"
    assert facts.names.fresh("scaler") == "scaler_2"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("import torch\nx = 1", "torch.nn.Linear", id="package"),
        pytest.param("import torch\nfrom torch import nn\nx = 1", "nn.Linear", id="shortest"),
        pytest.param("try:\n    import torch\nexcept ImportError:\n    pass\nx = 1", None, id="may be missing"),
        pytest.param("import numpy\nx = 1", None, id="no torch"),
    ],
)
def test_spelling_uses_the_files_own_imports(text: str, expected: str | None) -> None:
    """A torch name is written the way the file writes torch names."""
    facts = facts_of(text)
    assert facts.names.spell("torch.nn.Linear", facts.source.tree.body[-1]) == expected


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        pytest.param("here()", "min", True, id="builtin"),
        pytest.param("min = 3\nhere()", "min", False, id="builtin bound anew"),
        pytest.param("from pylab import *\nhere()", "min", False, id="builtin that a star may have bound"),
        pytest.param("x = 1\nhere()", "x", True, id="variable"),
        pytest.param("def f():\n    x = 1\nhere()", "x", False, id="variable of a function"),
        pytest.param("here()", "x", False, id="nothing"),
    ],
)
def test_visible_names_are_variables_in_sight_and_builtins(text: str, name: str, expected: bool) -> None:
    """New code may read what the place sees, and a builtin only where it is one."""
    facts = facts_of(text)
    assert facts.names.is_visible(name, node(facts, "here()")) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("if main:\n    import os\n    here()", True, id="same block"),
        pytest.param("if main:\n    import os\n    for x in y:\n        here()", True, id="block around"),
        pytest.param("def f():\n    import os\n    here()", True, id="in a function"),
        pytest.param("if main:\n    import os\nhere()", False, id="block that may not run"),
        pytest.param("if main:\n    here()\n    import os", False, id="behind"),
        pytest.param("import posix as os\nhere()", False, id="another module"),
        pytest.param("here()", False, id="not imported"),
    ],
)
def test_module_is_there_where_an_import_surely_ran(text: str, expected: bool) -> None:
    """An import counts in its own block and the blocks inside it, behind the import."""
    facts = facts_of(text)
    assert facts.names.has_module("os", node(facts, "here()")) is expected


def test_last_certain_definition_of_a_module_is_what_others_import() -> None:
    """A class that takes the name of its imported base is the one that other files get."""
    facts = facts_of("from sets import Dataset\nDataset()", modules={"sets.py": "from base import Dataset\nclass Dataset(Dataset): ..."})
    definition = facts.names.definition(node(facts, "Dataset"))
    assert definition is not None
    assert definition.facts.path == "sets.py"


@pytest.mark.parametrize(
    ("text", "neighbour", "expected"),
    [
        pytest.param("import torch\nuse(torch.nn.Linear)", "torch.nn.Linear", "torch.nn.parallel.X", id="dotted"),
        pytest.param("import torch\nfrom torch import nn\nuse(nn.Linear)", "nn.Linear", "nn.parallel.X", id="shortest"),
        pytest.param("from torch.nn import parallel\nuse(parallel.Y)", "parallel.Y", "parallel.X", id="inner module"),
        pytest.param("import torch\nfrom torch.nn import Linear\nuse(Linear)", "Linear", "X", id="bare"),
        pytest.param(
            "import torch\nfrom torch.nn import Linear\nX = 3\nuse(Linear)", "Linear", "torch.nn.parallel.X", id="bare name taken"
        ),
        pytest.param("from torch.nn.parallel import distributed\nuse(distributed.Y)", "distributed.Y", "X", id="module of another name"),
        pytest.param("import other\nuse(other.Linear)", "other.Linear", "X", id="no other way"),
    ],
)
def test_a_name_is_written_as_its_neighbour(text: str, neighbour: str, expected: str) -> None:
    """New code follows the file's way of naming the package."""
    facts = facts_of(text)
    assert facts.names.beside(node(facts, neighbour), "torch.nn.parallel.X") == expected


def test_two_names_that_stand_for_each_other_are_nothing() -> None:
    """A circle of assignments in an imported file ends."""
    facts = facts_of("from nets import Net\nNet()", modules={"nets.py": "Net = Other\nOther = Net\n"})
    assert facts.names.definition(node(facts, "Net")) is None
