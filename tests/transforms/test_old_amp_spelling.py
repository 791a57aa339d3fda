"""old-amp-spelling: which spellings stay, which are held and why, and that the new ones compute the same without a warning."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.running import run_on_cpu, run_on_fake_gpu
from torchfix.testing import check_held, check_noop, check_program, check_transformed, run_transform

RULE = "old-amp-spelling"
HEAD = "import torch\nfrom torch.cuda.amp import GradScaler, autocast, custom_bwd, custom_fwd\n\n"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('import torch\nwith torch.autocast("cuda"):\n    pass', id="torch.autocast"),
        pytest.param('import torch\nwith torch.amp.autocast("cuda", enabled=False):\n    pass', id="torch.amp"),
        pytest.param("from apex.amp import autocast\nautocast(False)", id="of another package"),
        pytest.param("from torch.cuda.amp import autocast\ndef f(autocast):\n    autocast(False)", id="a parameter of that name"),
        pytest.param("from torch.cuda.amp import autocast\nautocast = make()\nautocast()", id="bound anew"),
        pytest.param('"""\nwith torch.cuda.amp.autocast():\n"""', id="in a string"),
        pytest.param("from torch.cuda.amp import autocast", id="an import alone"),
        pytest.param("import torch\ntorch.cuda.amp.common.amp_definitely_not_available()", id="what is not deprecated"),
        pytest.param('import torch\ntorch.is_autocast_enabled()\ntorch.get_autocast_dtype("cuda")', id="getters of today"),
    ],
)
def test_other_spellings_stay(text: str) -> None:
    """What torch does not deprecate, and what is not torch's, is left alone."""
    check_noop(RULE, text)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param("class Own(GradScaler, Mixin):\n    pass", "derived", id="trap 8: a class of two"),
        pytest.param("class Own(autocast):\n    pass\nregister(Own)", "derived", id="trap 8: made out of sight"),
        pytest.param("class Own(autocast):\n    pass\nOwn(*options)", "derived", id="trap 8: made with stars"),
        pytest.param("class Own(autocast):\n    pass\nclass Other(Own):\n    pass", "derived", id="trap 8: derived again"),
        pytest.param(
            "class Own(autocast):\n    def __init__(self):\n        autocast.__init__(self, False)",
            "derived",
            id="trap 8: by the base's name",
        ),
        pytest.param("make = partial(autocast, enabled=False)", "handed-on", id="handed on"),
        pytest.param("context = autocast\nwith context(False):\n    pass", "handed-on", id="kept, and called by position"),
        pytest.param("context = autocast\nother = context", "handed-on", id="kept under two names"),
        pytest.param("context = autocast\nfit(context)", "handed-on", id="kept, and handed out of sight"),
        pytest.param("context = autocast\ngetattr(module, 'context')", "handed-on", id="kept, and read by its name"),
        pytest.param("Scaler = GradScaler\ns = Scaler()", "handed-on", id="a scaler's class kept"),
        pytest.param("torch.cuda.amp.autocast = mine\nwith autocast():\n    pass", "rebound", id="something else put in its place"),
        pytest.param("setattr(torch.cuda.amp, 'autocast', mine)\nwith autocast():\n    pass", "rebound", id="set in its place"),
        pytest.param("mock.patch('torch.cuda.amp.GradScaler')\ns = GradScaler()", "rebound", id="patched in its place"),
        pytest.param("def f(torch):\n    with autocast():\n        pass", "name-taken", id="another torch"),
        pytest.param("match s:\n    case GradScaler():\n        pass", "handed-on", id="matched"),
        pytest.param("@autocast\ndef f(x):\n    return x", "handed-on", id="a class as a decorator"),
        pytest.param("kind = type(s) is GradScaler", "handed-on", id="compared"),
        pytest.param("autocast(*options)", "hidden-arguments", id="starred arguments"),
        pytest.param("s = GradScaler()\nKINDS = [GradScaler]\nisinstance(s, KINDS[0])", "checked-elsewhere", id="perhaps asked about"),
        pytest.param("s = GradScaler()\nt = torch.amp.GradScaler('xpu')\nisinstance(t, GradScaler)", "told-apart", id="one of two kinds"),
        pytest.param("torch.set_autocast_dtype('cuda', d)\nautocast(**options)", "hidden-arguments", id="which may hold the dtype"),
        pytest.param("if torch.__version__ >= '2':\n    s = None\nelse:\n    s = GradScaler()", "version-guard", id="version"),
        pytest.param("s = GradScaler() if old else torch.amp.GradScaler()", "version-guard", id="either of two"),
        pytest.param("try:\n    s = GradScaler()\nexcept AttributeError:\n    s = None", "version-guard", id="tried"),
        pytest.param("@torch.jit.script\ndef f(x):\n    with autocast():\n        return x", "torchscript", id="trap 5: scripted"),
        pytest.param("s = GradScaler()\nif type(s) == GradScaler:\n    pass", "checked-elsewhere", id="made for a comparison"),
    ],
)
def test_held(text: str, code: str) -> None:
    """What would change its meaning, or who uses it, stays and says why."""
    assert check_held(RULE, HEAD + text, code).reason.help


def test_a_network_that_another_file_compiles_with_torchscript_is_held() -> None:
    """The class that TorchScript knows has a branch of its own for it."""
    model = """
    import torch
    from torch.cuda.amp import autocast

    class Net(torch.nn.Module):
        def forward(self, x):
            with autocast():
                return x
    """
    check_held(
        RULE, model, "torchscript", path="model.py", modules={"export.py": "import torch\nfrom model import Net\ntorch.jit.script(Net())\n"}
    )


def test_trap_5_a_script_that_compiles_a_network_is_not_compiled_itself() -> None:
    """Neither module level nor the function that calls the compiler is TorchScript."""
    text = """
    import torch

    def main(net, x):
        net = torch.jit.script(net)
        with torch.cuda.amp.autocast():
            return net(x)

    with torch.cuda.amp.autocast(False):
        main(torch.nn.Linear(2, 2), torch.ones(2, 2))
    """
    after = text.replace("torch.cuda.amp.autocast()", 'torch.autocast("cuda")')
    check_transformed(RULE, text, after.replace("torch.cuda.amp.autocast(False)", 'torch.autocast("cuda", enabled=False)'))


def test_trap_7_an_import_that_is_tried_stays() -> None:
    """A program that runs without the old names too supports versions of torch that we do not know."""
    text = """
    try:
        from torch.cuda.amp import autocast
    except ImportError:
        class autocast:
            def __init__(self, enabled=True):
                pass

    with autocast(False):
        pass
    """
    check_noop(RULE, text)


def test_f88_the_probing_import_stays() -> None:
    """The import in ``try`` tells whether there is AMP at all; it is neither removed nor respelled."""
    text = """
    try:
        from torch.cuda.amp import autocast
        HAS_AMP = True
    except ImportError:
        HAS_AMP = False

    def f(net, x):
        if HAS_AMP:
            with autocast():
                return net(x)
        return net(x)
    """
    check_held(RULE, text, "version-guard")


@pytest.mark.parametrize(
    ("torch", "text", "written"),
    [
        pytest.param((1, 9), "c = autocast()", None, id="autocast before 1.10"),
        pytest.param((1, 10), "c = autocast()", 'c = torch.autocast("cuda")', id="autocast since 1.10"),
        pytest.param((2, 2), "s = GradScaler()", None, id="scaler before 2.3"),
        pytest.param((2, 3), "s = GradScaler()", 's = torch.amp.GradScaler("cuda")', id="scaler since 2.3"),
        pytest.param((2, 3), "@custom_bwd\ndef b(c, g): pass", None, id="decorators before 2.4"),
        pytest.param(
            (2, 4), "@custom_bwd\ndef b(c, g): pass", '@torch.amp.custom_bwd(device_type="cuda")\ndef b(c, g): pass', id="since 2.4"
        ),
        pytest.param((2, 3), "d = torch.get_autocast_gpu_dtype()", None, id="getters before 2.4"),
        pytest.param((2, 4), "d = torch.get_autocast_gpu_dtype()", 'd = torch.get_autocast_dtype("cuda")', id="getters since 2.4"),
    ],
)
def test_the_oldest_torch_decides(torch: tuple[int, int], text: str, written: str | None) -> None:
    """No spelling is written that the oldest torch which the project declares does not know."""
    if written is None:
        check_held(RULE, HEAD + text, "torch-too-old", torch=torch)
    else:
        result = run_transform(RULE, HEAD + text, torch=torch)
        assert written in result.after.decode()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("c = autocast(False)", 'c = torch.autocast("cuda", enabled=False)', id="trap 1: enabled by position"),
        pytest.param(
            "c = autocast(on, torch.float16, False)",
            'c = torch.autocast("cuda", enabled=on, dtype=torch.float16, cache_enabled=False)',
            id="trap 1: all by position",
        ),
        pytest.param("c = autocast(enabled=on)", 'c = torch.autocast("cuda", enabled=on)', id="by keyword"),
        pytest.param("c = autocast(**options)", 'c = torch.autocast("cuda", **options)', id="keywords of elsewhere"),
        pytest.param("s = GradScaler(*options)", 's = torch.amp.GradScaler("cuda", *options)', id="scaler in the order of the old one"),
        pytest.param("s = GradScaler(1024.0)", 's = torch.amp.GradScaler("cuda", init_scale=1024.0)', id="scaler by position"),
        pytest.param("@autocast()\ndef f(x): pass", '@torch.autocast("cuda")\ndef f(x): pass', id="trap 4: decorator"),
        pytest.param("@custom_fwd\ndef f(c): pass", '@torch.amp.custom_fwd(device_type="cuda")\ndef f(c): pass', id="trap 3: bare"),
        pytest.param(
            "@custom_fwd(cast_inputs=torch.float32)\ndef f(c): pass",
            '@torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)\ndef f(c): pass',
            id="trap 3: called",
        ),
        pytest.param("f = custom_fwd(g)", 'f = torch.amp.custom_fwd(g, device_type="cuda")', id="applied by hand"),
        pytest.param("def f(s: GradScaler): pass", "def f(s: torch.amp.GradScaler): pass", id="annotation"),
        pytest.param("ok = isinstance(s, (int, GradScaler))", "ok = isinstance(s, (int, torch.amp.GradScaler))", id="trap 2: check"),
        pytest.param("torch.set_autocast_gpu_dtype(d)", 'torch.set_autocast_dtype("cuda", d)', id="setter"),
        pytest.param("ok = torch.is_autocast_cpu_enabled()", 'ok = torch.is_autocast_enabled("cpu")', id="CPU getter"),
    ],
)
def test_rewritten(before: str, after: str) -> None:
    """Every argument of today is named, and the imports that served the old spelling go with it."""
    words = ("GradScaler", "autocast", "custom_bwd", "custom_fwd")
    used = [word for word in words if f" {word}" in f" {before}".replace("@", " ").replace("(", " ")]
    imported = f"from torch.cuda.amp import {', '.join(used)}\n" if used else ""
    (note, *_) = check_transformed(RULE, f"import torch\n{imported}\n{before}\n", f"import torch\n\n{after}\n")
    assert note.risk == "exact"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            "from torch.cuda.amp import GradScaler\n\ns = GradScaler()\n",
            'import torch\n\ns = torch.amp.GradScaler("cuda")\n',
            id="F93: bare, no torch",
        ),
        pytest.param(
            "import torch as th\nfrom torch.cuda.amp import GradScaler as Scaler\n\ns = Scaler()\n",
            'import torch as th\n\ns = th.amp.GradScaler("cuda")\n',
            id="F93: aliased",
        ),
        pytest.param(
            "import torch\nfrom torch.cuda import amp\n\ns = amp.GradScaler()\nwith amp.autocast(False):\n    pass\n",
            'import torch\n\ns = torch.amp.GradScaler("cuda")\nwith torch.autocast("cuda", enabled=False):\n    pass\n',
            id="trap 6: the module",
        ),
        pytest.param(
            "import torch\nimport torch.cuda.amp as amp\n\nwith amp.autocast():\n    pass\n",
            'import torch\n\nwith torch.autocast("cuda"):\n    pass\n',
            id="trap 6: the module, aliased",
        ),
        pytest.param(
            "import torch\n\nwith torch.cpu.amp.autocast():\n    pass\n",
            'import torch\n\nwith torch.autocast("cpu"):\n    pass\n',
            id="CPU",
        ),
        pytest.param(
            "import torch\nfrom torch.cuda.amp import *\n\ns = GradScaler()\n",
            'import torch\nfrom torch.cuda.amp import *\n\ns = torch.amp.GradScaler("cuda")\n',
            id="all of the module",
        ),
        pytest.param(
            "from torch import amp\nimport torch.cuda.amp as old\n\ns = old.GradScaler()\n",
            'from torch import amp\n\ns = amp.GradScaler("cuda")\n',
            id="as the file spells torch.amp",
        ),
    ],
)
def test_imports_are_those_that_the_file_needs(before: str, after: str) -> None:
    """The new name is written as the file writes torch's names, and only imports that the rewrite left unused go."""
    check_transformed(RULE, before, after)


def test_what_is_held_keeps_its_import() -> None:
    """Of an import of several names only those go that nothing uses any more."""
    before = """
    import torch
    from torch.cuda.amp import GradScaler, autocast

    kinds = [GradScaler]

    with autocast():
        pass
    """
    after = """
    import torch
    from torch.cuda.amp import GradScaler

    kinds = [GradScaler]

    with torch.autocast("cuda"):
        pass
    """
    check_transformed(RULE, before, after)


def test_an_import_inside_a_function_is_written_anew() -> None:
    """An import that serves one use brings the new name; one that serves more stays where it is."""
    before = """
    def f(net, x):
        from torch.cuda.amp import autocast
        with autocast(False):
            return net(x)
    """
    after = """
    def f(net, x):
        from torch import autocast
        with autocast("cuda", enabled=False):
            return net(x)
    """
    check_transformed(RULE, before, after)


def test_an_import_under_a_condition_that_another_file_takes_from_here_stays() -> None:
    """What the other file calls is the old class still."""
    text = "import torch\nif torch.cuda.is_available():\n    from torch.cuda.amp import autocast\n\ndef f():\n    return autocast()\n"
    after = text.replace("return autocast()", 'return torch.autocast("cuda")')
    check_transformed(RULE, text, after, path="model.py", modules={"train.py": "from model import autocast\n\nautocast(False)\n"})


def test_trap_2_checks_change_with_what_they_check() -> None:
    """An object of the new class is none of the old one, so that a check left behind would deny it."""
    before = """
    import torch
    from torch.cuda.amp import GradScaler

    scaler = GradScaler()
    print(isinstance(scaler, GradScaler))
    """
    after = """
    import torch

    scaler = torch.amp.GradScaler("cuda")
    print(isinstance(scaler, torch.amp.GradScaler))
    """
    check_transformed(RULE, before, after)


def test_trap_2_a_check_in_another_file_changes_with_the_scaler() -> None:
    """One finding, taken in both files or in none."""
    trainer = "import torch\nfrom torch.cuda.amp import GradScaler\n\ndef step(scaler):\n    return isinstance(scaler, GradScaler)\n"
    script = "import torch\nfrom trainer import step\n\nprint(step(torch.cuda.amp.GradScaler()))\n"
    check_program(
        RULE,
        {"trainer.py": trainer, "train.py": script},
        {
            "trainer.py": "import torch\n\ndef step(scaler):\n    return isinstance(scaler, torch.amp.GradScaler)\n",
            "train.py": script.replace("torch.cuda.amp.GradScaler()", 'torch.amp.GradScaler("cuda")'),
        },
    )


def test_trap_2_two_files_that_make_what_a_third_asks_about_change() -> None:
    """The check is part of the first finding; the second is made on the new texts."""
    make = "import torch\n\ndef make():\n    return torch.cuda.amp.GradScaler()\n"
    ask = "import torch\nimport one, two\n\nprint(all(isinstance(m.make(), torch.cuda.amp.GradScaler) for m in (one, two)))\n"
    texts = {"one.py": make, "two.py": make, "ask.py": ask}
    after = {path: text.replace("torch.cuda.amp.GradScaler()", 'torch.amp.GradScaler("cuda")') for path, text in texts.items()}
    after["ask.py"] = ask.replace("torch.cuda.amp.GradScaler", "torch.amp.GradScaler")
    check_program(RULE, texts, after)


def test_trap_2_a_check_in_another_file_that_cannot_change_holds_the_scaler() -> None:
    """The words name the other place."""
    trainer = "import torch\n\ndef step(scaler):\n    return type(scaler) is torch.cuda.amp.GradScaler\n"
    script = "import torch\nfrom trainer import step\n\nstep(torch.cuda.amp.GradScaler())\n"
    note = check_held(RULE, script, "checked-elsewhere", modules={"trainer.py": trainer})
    assert note.reason is not None and note.reason.text.startswith("trainer.py:4 ")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("torch.set_autocast_dtype('cuda', d)", '"cuda", dtype=torch.float16', id="set for the thread"),
        pytest.param("with torch.autocast('cuda', dtype=torch.bfloat16):\n    pass", '"cuda", dtype=torch.float16', id="set around it"),
        pytest.param("with torch.autocast('cuda', cache_enabled=False):\n    pass", '"cuda", cache_enabled=True', id="the cache"),
        pytest.param("from accelerate import Accelerator\nAccelerator()", '"cuda", dtype=torch.float16', id="by a framework"),
    ],
)
def test_trap_9_what_the_old_class_fixed_is_written_out(before: str, after: str) -> None:
    """The new class takes its dtype and its cache from what surrounds it, which the old one never did."""
    text = f"import torch\n{before}\nwith torch.cuda.amp.autocast():\n    pass\n"
    check_transformed(RULE, text, text.replace("torch.cuda.amp.autocast()", f"torch.autocast({after})"))


def test_trap_9_another_file_of_the_program_counts() -> None:
    """The region around this one may be opened in the file that calls it."""
    caller = "import torch\nfrom model import f\n\nwith torch.autocast('cuda', dtype=torch.bfloat16):\n    f()\n"
    text = "import torch\n\ndef f():\n    with torch.cuda.amp.autocast():\n        pass\n"
    after = text.replace("torch.cuda.amp.autocast()", 'torch.autocast("cuda", dtype=torch.float16)')
    check_transformed(RULE, text, after, path="model.py", modules={"train.py": caller})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("torch.cuda.amp.autocast()", '"cuda"', id="nothing"),
        pytest.param("torch.cuda.amp.autocast(enabled=False)", '"cuda", enabled=False', id="off, and nobody asks for the precision"),
    ],
)
def test_trap_9_nothing_is_written_out_for_nothing(before: str, after: str) -> None:
    """A region that is off has no precision, and Apex patches operators without telling autocast."""
    other = (
        "with torch.cuda.amp.autocast(dtype=torch.bfloat16):\n    pass\n"
        if "False" in before
        else "from apex import amp\namp.initialize(m, o)\n"
    )
    text = f"import torch\n{other}with {before}:\n    pass\n"
    expected = text.replace(before, f"torch.autocast({after})")
    expected = expected.replace("torch.cuda.amp.autocast(dtype", 'torch.autocast("cuda", dtype')
    check_transformed(RULE, text, expected)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            "amp_autocast = torch.cuda.amp.autocast if use else suppress\nwith amp_autocast(enabled=False):\n    pass",
            'amp_autocast = functools.partial(torch.autocast, "cuda") if use else suppress\nwith amp_autocast(enabled=False):\n    pass',
            id="a variable",
        ),
        pytest.param(
            "def f(context=torch.cuda.amp.autocast):\n    with context():\n        pass",
            'def f(context=functools.partial(torch.autocast, "cuda")):\n    with context():\n        pass',
            id="a default",
        ),
        pytest.param(
            "context = functools.partial(torch.cuda.amp.autocast, enabled=False)\nwith context():\n    pass",
            'context = functools.partial(torch.autocast, "cuda", enabled=False)\nwith context():\n    pass',
            id="a partial call",
        ),
        pytest.param(
            "class T:\n    def __init__(self):\n        self.context = torch.cuda.amp.autocast\n"
            "    def f(self):\n        with self.context():\n            pass",
            'class T:\n    def __init__(self):\n        self.context = functools.partial(torch.autocast, "cuda")\n'
            "    def f(self):\n        with self.context():\n            pass",
            id="an attribute",
        ),
        pytest.param(
            "context = torch.cuda.amp.autocast\ntorch.set_autocast_dtype('cuda', d)",
            "context = functools.partial(torch.autocast, \"cuda\", dtype=torch.float16)\ntorch.set_autocast_dtype('cuda', d)",
            id="trap 9: where the precision is changed",
        ),
    ],
)
def test_autocast_that_is_kept_and_only_called_is_told_its_device_there(before: str, after: str) -> None:
    """Whoever calls it, by keyword, then makes the same region."""
    head = "import functools\nimport torch\n\n"
    check_transformed(RULE, head + before + "\n", head + after + "\n")


def test_autocast_that_other_files_are_handed_under_one_name_is_told_its_device() -> None:
    """The name is followed through keywords, parameters and positions."""
    engine = "def validate(net, x, amp_autocast):\n    with amp_autocast():\n        return net(x)\n"
    script = """\
import torch
from engine import validate

def main(net, x):
    amp_autocast = torch.cuda.amp.autocast
    validate(net, x, amp_autocast)
    return validate(net, x, amp_autocast=amp_autocast)
"""
    after = script.replace("import torch\n", "import functools\nimport torch\n", 1)
    after = after.replace("torch.cuda.amp.autocast", 'functools.partial(torch.autocast, "cuda")')
    check_transformed(RULE, script, after, modules={"engine.py": engine})
    positions = {"engine.py": engine.replace("amp_autocast", "context").replace("context()", "context(True)")}
    check_held(RULE, script, "handed-on", modules=positions)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            "class Own(GradScaler):\n    pass\n\ns = Own(enabled=False)",
            "class Own(torch.amp.GradScaler):\n    pass\n\ns = Own(enabled=False)",
            id="a scaler's, which is CUDA's unless it is told",
        ),
        pytest.param(
            "class Own(GradScaler):\n    pass\n\ns = Own(8.0)",
            'class Own(torch.amp.GradScaler):\n    pass\n\ns = Own("cuda", init_scale=8.0)',
            id="a scaler's, made by position",
        ),
        pytest.param(
            "class Own(GradScaler):\n    def __init__(self, *args, **kwargs):\n        super().__init__(*args, **kwargs)",
            'class Own(torch.amp.GradScaler):\n    def __init__(self, *args, **kwargs):\n        super().__init__("cuda", *args, **kwargs)',
            id="a scaler's constructor",
        ),
        pytest.param(
            "class Own(autocast):\n    pass\n\nc = Own(False)",
            'class Own(torch.autocast):\n    pass\n\nc = Own("cuda", enabled=False)',
            id="a region's",
        ),
        pytest.param(
            "class Own(autocast):\n    def __init__(self, on):\n        super(Own, self).__init__(on)",
            'class Own(torch.autocast):\n    def __init__(self, on):\n        super(Own, self).__init__("cuda", enabled=on)',
            id="a region's constructor",
        ),
    ],
)
def test_trap_8_derived_classes_pass_the_device_on(before: str, after: str) -> None:
    """The class below says the device where it, or who makes it, gave the old arguments."""
    word = "GradScaler" if "GradScaler" in before else "autocast"
    check_transformed(RULE, f"import torch\nfrom torch.cuda.amp import {word}\n\n{before}\n", f"import torch\n\n{after}\n")


def test_trap_8_a_derived_class_that_other_files_make_changes_with_them() -> None:
    """Every construction is given the device, in one finding."""
    own = "import torch\n\nclass Own(torch.cuda.amp.autocast):\n    pass\n"
    use = "from own import Own\n\nwith Own(False):\n    pass\n"
    check_program(
        RULE,
        {"own.py": own, "use.py": use},
        {"own.py": own.replace("cuda.amp.", ""), "use.py": use.replace("Own(False)", 'Own("cuda", enabled=False)')},
    )


def test_a_name_that_a_module_of_the_project_hands_on_is_followed() -> None:
    """The module that only imports it keeps its import; who calls it needs it no more."""
    before = """
    import torch
    from .compat import GradScaler, seed
    from .mixed import autocast as ac

    seed()
    s = GradScaler()
    with ac(False):
        pass
    """
    after = """
    import torch
    from .compat import seed

    seed()
    s = torch.amp.GradScaler("cuda")
    with torch.autocast("cuda", enabled=False):
        pass
    """
    check_transformed(
        RULE,
        before,
        after,
        path="pkg/train.py",
        modules={
            "pkg/__init__.py": "",
            "pkg/compat.py": "from torch.cuda.amp import GradScaler\n\ndef seed():\n    pass\n",
            "pkg/mixed.py": "from torch.cuda.amp import autocast\n",
        },
    )


def test_an_import_that_runs_a_module_which_does_more_stays() -> None:
    """What that module does when it runs would be lost with it."""
    before = "import torch\nfrom compat import autocast\n\nwith autocast():\n    pass\n"
    modules = {"compat.py": "import torch\nfrom torch.cuda.amp import autocast\n\ntorch.manual_seed(0)\n"}
    check_transformed(RULE, before, before.replace("autocast():", 'torch.autocast("cuda"):'), modules=modules)


def test_a_name_that_a_module_of_the_project_may_lack_is_left_alone() -> None:
    """The module has a choice."""
    modules = {"compat.py": "try:\n    from torch.cuda.amp import autocast\nexcept ImportError:\n    autocast = None\n"}
    check_noop(RULE, "from compat import autocast\n\nwith autocast():\n    pass\n", modules=modules)


def test_f88_where_every_torch_has_the_name_its_uses_are_spelled_anew() -> None:
    """The probe stays and tells the same."""
    text = """
    import torch
    try:
        from torch.cuda.amp import autocast
        HAS_AMP = True
    except ImportError:
        HAS_AMP = False

    def f(net, x):
        if HAS_AMP:
            with autocast():
                return net(x)
        return net(x)
    """
    check_transformed(RULE, text, text.replace("with autocast()", 'with torch.autocast("cuda")'), torch=(1, 10))


def test_amp_loop_and_this_rule_leave_each_other_alone() -> None:
    """What amp-loop writes is no old spelling, and what this rule writes is seen as mixed precision."""
    plain = """
    import torch

    model = torch.nn.Linear(4, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(torch.ones(2, 4).cuda()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    """
    mixed = run_transform("amp-loop", plain).after
    assert b"GradScaler" in mixed
    check_noop(RULE, mixed.decode())
    old = """
    import torch

    model = torch.nn.Linear(4, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.cuda.amp.GradScaler()
    for _ in range(3):
        with torch.cuda.amp.autocast():
            loss = model(torch.ones(2, 4).cuda()).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    check_noop("amp-loop", run_transform(RULE, old).after.decode())


TRAINING = """
import functools

import torch
from torch.cuda.amp import GradScaler, autocast, custom_bwd, custom_fwd


class Patient(GradScaler):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.skipped = 0


class Region(autocast):
    pass


class Double(torch.autograd.Function):
    @staticmethod
    @custom_fwd(cast_inputs=torch.float32)
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    @custom_bwd
    def backward(ctx, grad):
        return 2 * grad


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = Patient(1024.0, growth_interval=2)
context = functools.partial(autocast, enabled=True)
for step in range(6):
    with autocast(step % 2 == 0):
        hidden = model(torch.ones(2, 4, device=device) * step)
        out = Double.apply(hidden)
        loss = out.float().pow(2).mean()
    with context(), Region(step % 2 == 0):
        again = model(torch.ones(2, 4, device=device)).dtype
    with torch.cpu.amp.autocast():
        low = torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(loss.item(), hidden.dtype, out.dtype, again, low, scaler.get_scale(), isinstance(scaler, GradScaler))
"""


def test_the_rewritten_program_computes_the_same_without_a_warning(tmp_path: Path) -> None:
    """On the CPU every number is the same, and the deprecation warnings are gone."""
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(TRAINING)
    after.write_bytes(run_transform(RULE, TRAINING).after)
    assert run_on_cpu(before) == run_on_cpu(after)
    strict = [sys.executable, "-W", "error::FutureWarning", str(before)]
    assert "FutureWarning" in subprocess.run(strict, capture_output=True, text=True, timeout=60, check=False).stderr
    strict[-1] = str(after)
    assert subprocess.run(strict, capture_output=True, text=True, timeout=60, check=False).returncode == 0


def test_the_rewritten_program_computes_the_same_on_the_gpu(tmp_path: Path) -> None:
    """On the pretend GPU, where autocast and the scaler are at work, every number is the same."""
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(TRAINING)
    after.write_bytes(run_transform(RULE, TRAINING).after)
    printed, counts = run_on_fake_gpu(before)
    again, counts_after = run_on_fake_gpu(after)
    assert "torch.float16" in printed
    assert (again, counts_after["sync"]) == (printed, counts["sync"])


def test_the_new_classes_are_told_the_same(tmp_path: Path) -> None:
    """Every old call and its rewriting make objects with the same state."""
    calls = [
        "autocast(False)",
        "autocast(True, torch.bfloat16)",
        "autocast(True, torch.float16, False)",
        "GradScaler(8.0, 4.0, 0.25, 7, False)",
        "GradScaler(*(8.0, 4.0), growth_interval=7)",
    ]
    text = dedent("""
    import torch
    from torch.cuda.amp import GradScaler, autocast

    def state(made):
        return sorted((name, value) for name, value in vars(made).items() if isinstance(value, (int, float, str, torch.dtype)))

    """)
    text += "".join(f"print(state({call}))\n" for call in calls)
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(text)
    after.write_bytes(run_transform(RULE, text).after)
    assert b"torch.cuda.amp" not in after.read_bytes()
    assert run_on_cpu(before) == run_on_cpu(after)
