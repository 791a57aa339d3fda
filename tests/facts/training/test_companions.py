"""Where a scaler can be made beside its optimizer, and how it reaches the loop."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts import Facts
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.companions import Companion

MAIN = """
import torch


def step(opt, where):
    {use}


def fit(optimizer, args):
    step(optimizer, args.device)


def main(args):
    optimizer = torch.optim.SGD(weights, lr=1)
    fit(optimizer, args)
"""


def companion(facts: Facts, text: str, occurrence: int = 0) -> Companion:
    """The companion of the object that an expression names."""
    found = facts.companions.of(node(facts, text, occurrence))
    assert not isinstance(found, Obstacle), found
    (one,) = found
    return one


@pytest.mark.parametrize(
    ("text", "after"),
    [
        pytest.param("o = make()\no.step()\n", "o = make()", id="one statement"),
        pytest.param("o = None\nif a:\n    o = make()\nelse:\n    o = other()\no.step()\n", "if a:", id="two branches"),
        pytest.param("o = None\nif a:\n    o = make()\no.step()\n", "if a:", id="none before one branch"),
        pytest.param("o = make()\n\n\ndef train():\n    o.step()\n", "o = make()", id="a global"),
        pytest.param("def train():\n    o = make()\n    while True:\n        o.step()\n", "o = make()", id="in the same function"),
    ],
)
def test_a_companion_is_made_behind_what_makes_the_object(text: str, after: str) -> None:
    """Behind the statement, or behind the whole choice between several."""
    facts = facts_of(text)
    occurrence = text.count("o =") if "def train():\n    o.step" not in text else 1
    found = companion(facts, "o", occurrence)
    assert ast.unparse(found.after).startswith(after)
    assert found.passes == ()
    assert found.owner == ""


def test_a_parameter_is_followed_through_every_caller() -> None:
    """Each function on the way must be handed the companion, the innermost first."""
    facts = facts_of(MAIN.format(use="opt.step()"))
    found = companion(facts, "opt")
    assert [step.function.name for step in found.passes] == ["step", "fit"]
    assert [ast.unparse(call) for step in found.passes for call in step.calls] == ["step(optimizer, args.device)", "fit(optimizer, args)"]
    assert ast.unparse(found.variable) == "optimizer"
    assert ast.unparse(found.after) == "optimizer = torch.optim.SGD(weights, lr=1)"


def test_a_parameter_is_followed_into_other_files() -> None:
    """Each script that calls the function has a place of its own, and each pass knows the files of its function and calls."""
    scripts = {
        "one.py": "import train\n\n\ndef main():\n    o = make()\n    train.fit(o, 1)\n",
        "two.py": "from train import fit as go\n\nopt = make()\ngo(opt, 2)\n",
    }
    facts = facts_of("def fit(o, n):\n    step(o)\n\n\ndef step(p):\n    p.step()\n", modules=scripts)
    found = facts.companions.of(node(facts, "p"))
    assert not isinstance(found, Obstacle)
    by_path = sorted(found, key=lambda item: item.facts.path)
    assert [item.facts.path for item in by_path] == ["one.py", "two.py"]
    assert [ast.unparse(item.after) for item in by_path] == ["o = make()", "opt = make()"]
    for item, call in zip(by_path, ("train.fit(o, 1)", "go(opt, 2)")):
        inner, outer = item.passes
        assert (inner.facts, inner.caller, outer.facts, outer.caller) == (facts, facts, facts, item.facts)
        assert [ast.unparse(call) for call in inner.calls] == ["step(o)"]
        assert [ast.unparse(call) for call in outer.calls] == [call]


def test_a_variable_of_another_file_is_told_in_its_words_only_if_it_is_handed_on() -> None:
    """A parameter is what that file's call passes; a global of this file, or a default of the function, means nothing there."""
    script = "from train import fit\n\nwhere = place()\nopt = make()\nfit(opt, where)\n"
    text = "device = place()\n\n\ndef fit(o, at, late=device):\n    o.step(at, device, late)\n"
    facts = facts_of(text, modules={"main.py": script})
    (found,) = facts.companions.of(node(facts, "o"))  # type: ignore[misc]
    assert facts.companions.text(node(facts, "at"), found) == "where"
    assert facts.companions.text(node(facts, "device", 2), found) is None
    assert facts.companions.text(node(facts, "late"), found) is None


def test_a_method_is_handed_it_through_the_objects_of_its_class() -> None:
    """Every call of it is seen, in other files too, and surely runs it."""
    text = "class T:\n    def fit(self, o):\n        o.step()\n"
    facts = facts_of(text, modules={"main.py": "from train import T\n\nopt = make()\nt = T()\nt.fit(opt)\n"})
    (found,) = facts.companions.of(node(facts, "o"))  # type: ignore[misc]
    assert (found.facts.path, [ast.unparse(call) for call in found.passes[0].calls]) == ("main.py", ["t.fit(opt)"])


def test_two_functions_of_one_file_have_a_place_each() -> None:
    """Their variables do not meet; two in one function would."""
    text = "def step(p):\n    p.step()\n\n\ndef one():\n    o = make()\n    step(o)\n\n\ndef two():\n    o = make()\n    step(o)\n"
    facts = facts_of(text)
    found = facts.companions.of(node(facts, "p"))
    assert not isinstance(found, Obstacle)
    assert len(found) == 2


def test_what_the_loop_calls_its_device_is_told_in_the_words_of_the_place() -> None:
    """A parameter is what the callers pass for it; a local variable has no name there."""
    facts = facts_of(MAIN.format(use="x = where.index; opt.step(); local = 1; local"))
    found = companion(facts, "opt")
    assert facts.companions.text(node(facts, "where"), found) is None  # args.device is no plain name to follow further
    assert facts.companions.text(node(facts, "local"), found) is None
    assert facts.companions.text(None, found) is None
    direct = facts_of("def f(o, place):\n    o.step(place.type)\n\n\ndef main(device):\n    opt = make()\n    f(opt, device)\n")
    assert direct.companions.text(node(direct, "place.type"), companion(direct, "o")) == "device.type"


def test_a_variable_that_is_bound_later_cannot_be_read() -> None:
    """The companion must not use what does not exist yet."""
    facts = facts_of("o = make()\ndevice = where()\no.step(device)\n")
    assert facts.companions.text(node(facts, "device", 1), companion(facts, "o", 1)) is None
    facts = facts_of("device = where()\no = make()\no.step(device)\n")
    assert facts.companions.text(node(facts, "device", 1), companion(facts, "o", 1)) == "device"


def test_an_attribute_of_the_instance_has_its_companion_there() -> None:
    """Behind the one assignment of the class."""
    text = "class T:\n    def __init__(self):\n        self.device = d()\n        self.o = make()\n        self.late = 1\n\n"
    text += "    def run(self):\n        self.o.step(self.device, self.late)\n"
    facts = facts_of(text)
    found = companion(facts, "self.o", 1)
    assert found.owner == "self."
    assert ast.unparse(found.after) == "self.o = make()"
    assert facts.companions.text(node(facts, "self.device", 1), found) == "self.device"
    assert facts.companions.text(node(facts, "self.late", 1), found) is None


@pytest.mark.parametrize(
    ("member", "listed"),
    [
        pytest.param("def all(self):\n        return vars(self)", True, id="all of them"),
        pytest.param("def all(self):\n        return dict(self.__dict__)", True, id="all of the dictionary"),
        pytest.param("__slots__ = ('o',)", True, id="slots"),
        pytest.param("def __setattr__(self, name, value):\n        check(name)", True, id="each is looked at"),
        pytest.param("def one(self, name):\n        return self.__dict__[name]", False, id="one of them"),
        pytest.param("def set(self, **given):\n        self.__dict__.update(given)", False, id="some are set"),
        pytest.param("def other(self, args):\n        return vars(args)", False, id="those of another object"),
    ],
)
def test_an_object_whose_attributes_are_listed_gets_no_new_one(member: str, listed: bool) -> None:
    """It would be refused, or saved and printed with the others; also where the class above says so."""
    for bases in ("class B:\n    pass\n\n\nclass T(B):", f"class B:\n    {member}\n\n\nclass T(B):"):
        text = f"{bases}\n    def __init__(self):\n        self.o = make()\n\n    def run(self):\n        self.o.step()\n"
        text += f"\n    {member}\n" if "pass" in bases else ""
        facts = facts_of(text)
        found = facts.companions.of(node(facts, "self.o", 1))
        assert (isinstance(found, Obstacle) and found.code == "attributes-listed") is listed


@pytest.mark.parametrize(
    ("text", "use"),
    [
        pytest.param("def f(o):\n    o.step()\n", "o", id="nobody calls"),
        pytest.param("def f(o):\n    o.step()\n\n\nf(a)\nf(b)\n", "o", id="it comes from outside"),
        pytest.param("def f(o):\n    o.step()\n\n\na, b = make(), make()\nc = make()\nf(a)\nf(c)\n", "o", id="it comes from two places"),
        pytest.param("def f(o, *more):\n    o.step()\n\n\na = make()\nf(a, 1)\n", "o", id="behind it come others"),
        pytest.param("for o in many:\n    o.step()\n", "o", id="one of many"),
        pytest.param("o = make()\nfor e in n:\n    o.step()\n    if e:\n        o = make()\n", "o", id="made again in the loop"),
        pytest.param("class T:\n    @staticmethod\n    def f(o):\n        o.step()\n\n\na = make()\nT.f(a)\n", "o", id="a static method"),
        pytest.param(
            "class T:\n    def f(self, o):\n        o.step()\n\n    def g(self):\n        a = make()\n        self.f(a)\n\n\n"
            "class U(T):\n    def f(self, o):\n        pass\n",
            "o",
            id="a class below writes the method anew",
        ),
        pytest.param(
            "class U:\n    def f(self, o):\n        pass\n\n    def g(self):\n        a = make()\n        self.f(a)\n\n\n"
            "class T(U):\n    def f(self, o):\n        o.step()\n\n\nT().g()\n",
            "o",
            id="a class above calls the method",
        ),
        pytest.param("many[0].step()\n", "many[0]", id="an element"),
        pytest.param("a = make()\n\n\ndef f(o=a):\n    o.step()\n\n\nf()\n", "o", id="the function's own default"),
        pytest.param("thing.o.step()\n", "thing.o", id="an attribute of something"),
    ],
)
def test_objects_of_other_origin_have_no_place_for_a_companion(text: str, use: str) -> None:
    """The reason is stable."""
    facts = facts_of(text)
    found = facts.companions.of(node(facts, use, 1 if text.startswith(("for", "o =")) else 0))
    assert isinstance(found, Obstacle)
    assert found.code == "optimizer-elsewhere"


def test_another_name_of_an_object_has_the_companion_of_the_object() -> None:
    """Where a method calls its object's optimizer by a shorter name, the companion is not made anew by each call of the method."""
    text = "class T:\n    def __init__(self):\n        self.o = make()\n\n    def epoch(self):\n        o = self.o\n        o.step()\n"
    found = companion(facts_of(text), "o", 1)
    assert (found.owner, ast.unparse(found.after)) == ("self.", "self.o = make()")


@pytest.mark.parametrize(
    ("text", "is_beside"),
    [
        pytest.param("def f():\n    o = make()\n    o.step()\n\n\ndef make():\n    return SGD(w)\n", True, id="a function makes it"),
        pytest.param("def f():\n    all = [SGD(w)]\n    o = all[0]\n    o.step()\n", True, id="made in the same function"),
        pytest.param("all = [SGD(w)]\no = all[0]\no.step()\n", True, id="a module runs once"),
        pytest.param("def f(all):\n    o = all[0]\n    o.step()\n\n\nmany = [SGD(w)]\nf(many)\n", False, id="taken out of a list"),
        pytest.param("def f(all):\n    o = all['a']\n    o.step()\n\n\nf({'a': SGD(w)})\n", False, id="taken out of a dictionary"),
        pytest.param("def f(all):\n    o, s = all\n    o.step()\n\n\nf((SGD(w), None))\n", False, id="taken apart"),
        pytest.param("all = [SGD(w)]\nfor e in n:\n    o = all[0]\n    o.step()\n", False, id="taken again for each round"),
        pytest.param(
            "class T:\n    def __init__(self):\n        self.many = [SGD(w)]\n\n"
            "    def epoch(self):\n        o = self.many[0]\n        o.step()\n",
            False,
            id="taken out of the object",
        ),
    ],
)
def test_what_only_hands_on_an_object_is_no_place_for_its_companion(text: str, is_beside: bool) -> None:
    """It would be made anew whenever the function runs, and forget what it had learned."""
    facts = facts_of(f"from torch.optim import SGD\n{text}")
    step = next(call for call in facts.tree.calls["step"])
    assert isinstance(step.func, ast.Attribute)
    assert isinstance(facts.companions.of(step.func.value), Obstacle) is not is_beside


@pytest.mark.parametrize(
    ("between", "after"),
    [
        pytest.param("n = 3", "b", id="made next to it"),
        pytest.param("n = other()", "b", id="another function is called"),
        pytest.param("train()", "a", id="the loop runs in between"),
        pytest.param("other(); a.load_state_dict(saved)", "a", id="a state is loaded in between"),
        pytest.param("save(a.state_dict())", "a", id="a state is saved in between"),
    ],
)
def test_one_companion_serves_all_optimizers_that_are_made_next_to_each_other(between: str, after: str) -> None:
    """Behind the last of them, unless it is needed before."""
    made = f"a = SGD(w)\n{between}\nb = SGD(v)\n"
    functions = "def other():\n    pass\n\n\ndef train():\n    for x in n:\n        loss(x)\n        a.step()\n\n\n"
    facts = facts_of(f"from torch.optim import SGD\n\n\n{functions}{made}train()\n")
    (step,) = facts.tree.calls["step"]
    assert isinstance(step.func, ast.Attribute)
    (own,) = facts.companions.of(step.func.value)  # type: ignore[misc]
    shared = facts.companions.shared(own, facts.tree.nearest(step, ast.For), facts)
    assert ast.unparse(shared.after).startswith(f"{after} =")


@pytest.mark.parametrize(
    ("setting", "after"),
    [
        pytest.param("self.o = None\n        self.o = make()", "self.o = make()", id="none until then"),
        pytest.param("self.o = other()\n        self.o = make()", None, id="made twice"),
        pytest.param("self.o += make()", None, id="changed in place"),
        pytest.param("self.o, self.p = make()", "self.o, self.p = make()", id="one of several"),
        pytest.param("self.o = self.p = make()", "self.o = self.p = make()", id="under two names"),
    ],
)
def test_an_attribute_that_holds_none_at_first_is_made_once(setting: str, after: str | None) -> None:
    """None cannot be stepped; an object made at two places would need two companions."""
    facts = facts_of(f"class T:\n    def __init__(self):\n        {setting}\n\n    def run(self):\n        self.o.step()\n")
    occurrence = setting.count("self.o")
    found = facts.companions.of(node(facts, "self.o", occurrence))
    assert (None if isinstance(found, Obstacle) else ast.unparse(found[0].after)) == after


def test_a_call_that_hands_on_none_has_no_object_to_be_beside() -> None:
    """A function that does without it at times is not followed."""
    facts = facts_of("def fit(p):\n    p.step()\n\n\no = make()\nfit(o)\nfit(None)\n")
    assert isinstance(facts.companions.of(node(facts, "p")), Obstacle)
