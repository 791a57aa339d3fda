"""The house rules: who may import, open, print, catch; what every rule and every test says of itself."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from torchfix import registry

ROOT = Path(__file__).resolve().parent.parent
DRIVER = sorted((ROOT / "torchfix").rglob("*.py"))
RULES = sorted(path for path in (ROOT / "transforms").glob("*.py") if path.name != "__init__.py")
TESTS = sorted(path for path in (ROOT / "tests").rglob("test_*.py"))
HEAVY = ("libcst", "black", "rich", "pathspec", "typer", "tomllib", "tomli", "importlib.metadata", "difflib", "torch")
LONGEST_RULE = 220


def name_of(path: Path) -> str:
    """A file of ours as a dotted module name."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] == "transforms":
        parts = ("torchfix", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in (*DRIVER, *RULES, ROOT / "transforms" / "__init__.py")}
each_driver_file = pytest.mark.parametrize("path", DRIVER, ids=[name_of(path) for path in DRIVER])
each_own_file = pytest.mark.parametrize("path", [*DRIVER, *RULES], ids=[name_of(path) for path in (*DRIVER, *RULES)])
each_rule_file = pytest.mark.parametrize("path", RULES, ids=[name_of(path) for path in RULES])


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(tree: ast.AST) -> Iterator[tuple[str, ast.stmt]]:
    """Every imported module by its full name; ``from package import module`` counts as the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, "relative imports are not used"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield (inner if inner in MODULES else node.module), node


def at_import(tree: ast.Module) -> ast.Module:
    """What runs when a module is imported: not the bodies of functions, nor what only the type checker reads."""

    class Outer(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            return None

        def visit_If(self, node: ast.If) -> ast.AST | None:
            return None if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" else self.generic_visit(node)

    outer: ast.Module = Outer().visit(ast.parse(ast.unparse(tree)))
    return outer


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Every call with the last name of what is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
            yield (node.func.id if isinstance(node.func, ast.Name) else node.func.attr), node


@each_driver_file
def test_the_driver_knows_no_rule_by_name(path: Path) -> None:
    """Rules are found by walking their package, so that a new one is one new file."""
    assert [name for name, _ in imports(tree_of(path)) if name.startswith("torchfix.transforms.")] == []
    words = {string.value for string in ast.walk(tree_of(path)) if isinstance(string, ast.Constant) and isinstance(string.value, str)}
    assert words & {rule.stem.replace("_", "-") for rule in RULES} == set()


@each_rule_file
def test_rules_import_only_the_language(path: Path) -> None:
    """A rule speaks through transforms, edits and facts, and the standard library; never through another rule."""
    language = re.compile(r"torchfix\.(transform|edits|facts(\..+)?)")
    foreign = [
        name for name, _ in imports(tree_of(path)) if not language.fullmatch(name) and name.split(".")[0] not in sys.stdlib_module_names
    ]
    assert foreign == []


@pytest.mark.parametrize("path", [path for path in DRIVER if "facts" in path.parts], ids=name_of)
def test_facts_know_neither_edits_nor_transforms(path: Path) -> None:
    """Facts answer questions and can be tested alone."""
    forbidden = ("torchfix.edits", "torchfix.transform", "torchfix.transforms")
    assert [name for name, _ in imports(tree_of(path)) if name.startswith(forbidden)] == []


@each_own_file
def test_nobody_imports_from_the_face_of_the_package(path: Path) -> None:
    """What the package shows to others is no way for its own modules to meet."""
    assert [node.lineno for name, node in imports(tree_of(path)) if name == "torchfix"] == []


@each_own_file
def test_only_files_opens_files(path: Path) -> None:
    """The disk has one door."""
    if name_of(path) == "torchfix.files":
        return
    openers = {"open", "fdopen", "read_text", "read_bytes", "write_text", "write_bytes", "mkstemp", "NamedTemporaryFile", "unlink"}
    assert [node.lineno for name, node in calls(tree_of(path)) if name in openers] == []


@each_own_file
def test_only_the_report_and_the_command_line_print(path: Path) -> None:
    """The screen has one door too."""
    name = name_of(path)
    if name.startswith("torchfix.report") or name in ("torchfix.cli", "torchfix.__main__"):
        return
    printed = [node.lineno for called, node in calls(tree_of(path)) if called == "print"]
    streams = [
        node.lineno
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute)
        and node.attr in ("stdout", "stderr")
        and isinstance(node.value, ast.Name)
        and node.value.id == "sys"
    ]
    assert printed + streams == []


@each_own_file
def test_only_segments_use_libcst(path: Path) -> None:
    """One module hands pieces of text to LibCST, where edits are applied."""
    if name_of(path) == "torchfix.segments":
        return
    assert [node.lineno for name, node in imports(tree_of(path)) if name.split(".")[0] == "libcst"] == []


@each_own_file
def test_only_the_engine_catches_broadly(path: Path) -> None:
    """A fault is caught once for a file, and once more where the process ends, for the sake of its exit code."""
    if name_of(path) in ("torchfix.engine", "torchfix.__main__"):
        return
    broad = [
        node.lineno
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ExceptHandler) and (node.type is None or ast.unparse(node.type) in ("Exception", "BaseException"))
    ]
    assert broad == []


@each_own_file
def test_heavy_packages_are_imported_where_they_are_used(path: Path) -> None:
    """What costs more than a bare start of Python is loaded only when it is needed."""
    allowed = {"torchfix.cli": "typer", "torchfix.segments": "libcst"}.get(name_of(path))
    found = {name for name, _ in imports(at_import(tree_of(path)))}
    assert [name for name in found if name in HEAVY and name != allowed] == []
    assert name_of(path) == "torchfix.segments" or "torchfix.segments" not in found


def test_the_version_is_told_before_anything_is_loaded() -> None:
    """``--version`` starts neither the command line nor any of the packages we depend on."""
    code = "import sys; from torchfix.__main__ import main; main(['--version']); print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True)

    version, loaded = done.stdout.split("\n", 1)

    assert version.startswith("torchfix ")
    assert not {"libcst", "black", "rich", "typer", "pathspec", "ast", "re"} & set(ast.literal_eval(loaded)) - set(bare_modules())
    assert "torchfix.cli" not in loaded


def bare_modules() -> list[str]:
    """What Python itself has loaded at its start."""
    code = "import sys; print(sorted(sys.modules))"
    return list(
        ast.literal_eval(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout)
    )


def test_a_run_that_changes_nothing_loads_no_rewriter(tmp_path: Path) -> None:
    """Help, and a run over clean files, need neither LibCST nor Black nor rich."""
    (tmp_path / "a.py").write_text("import torch\n")
    for words in (["--help"], [str(tmp_path)]):
        code = f"import sys; from torchfix.__main__ import main; main({words!r}); print(sorted(sys.modules))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True)
        loaded = set(ast.literal_eval(done.stdout.splitlines()[-1]))
        assert not {"libcst", "black", "rich"} & loaded
        assert words != ["--help"] or not {"torchfix.engine", "torchfix.facts"} & loaded


def test_imports_run_one_way() -> None:
    """No two modules need each other when they are imported."""
    needs = {name: {found for found, _ in imports(at_import(tree_of(path))) if found in MODULES} for name, path in MODULES.items()}
    while True:
        free = {name for name, needed in needs.items() if not needed & needs.keys() - {name}}
        if not free:
            break
        needs = {name: needed for name, needed in needs.items() if name not in free}
    assert needs == {}


@each_own_file
def test_public_names_are_explained(path: Path) -> None:
    """Every module, and every class and function that others may use, has a docstring."""
    tree = tree_of(path)
    silent = [] if ast.get_docstring(tree) else ["the module"]
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    for body in (tree.body, *(node.body for node in classes)):
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_") and not ast.get_docstring(node):
                silent.append(node.name)
    if path in RULES:
        silent = [name for name in silent if name != "find"]  # what it finds is what its module says
    assert silent == []


@pytest.mark.parametrize("path", TESTS, ids=[str(path.relative_to(ROOT)) for path in TESTS])
def test_every_test_states_a_behaviour(path: Path) -> None:
    """The docstring of a test is a sentence that says what holds."""
    functions = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    assert [node.name for node in functions if not (ast.get_docstring(node) or "").endswith(".")] == []


@each_rule_file
def test_a_rule_is_a_screen_and_a_half(path: Path) -> None:
    """A longer file holds two things; what it says of itself is not counted."""
    explanation = tree_of(path).body[0].end_lineno or 0
    assert len(path.read_text().splitlines()) - explanation <= LONGEST_RULE


@each_rule_file
def test_a_rule_ends_with_its_transform(path: Path) -> None:
    """The last statement of a rule is the frozen transform, named alike in every file."""
    last = tree_of(path).body[-1]
    assert isinstance(last, ast.Assign)
    assert ast.unparse(last.targets[0]) == "TRANSFORM"


@each_rule_file
def test_a_rule_has_a_test_file_of_its_own(path: Path) -> None:
    """A rule is one file, its tests one more."""
    assert f"test_{path.stem}.py" in {test.name for test in TESTS}


@each_rule_file
def test_a_rule_is_in_the_changelog(path: Path) -> None:
    """Users learn of a rule by its name."""
    assert f"`{path.stem.replace('_', '-')}`" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("path", RULES, ids=[path.stem for path in RULES])
def test_a_rule_names_its_effects_and_sources(path: Path) -> None:
    """The docstring has its fixed headings, each with words, and the summary is one line in the imperative."""
    transform = registry.find(path.stem.replace("_", "-"))
    for section in (transform.why, transform.before, transform.after, transform.safety, transform.reference):
        assert section.strip()
    assert re.fullmatch(r"[A-Z][^\n]*\.", transform.summary)


README_COMMANDS = re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)


def test_the_readme_begins_with_the_two_commands() -> None:
    """The first screen has one command for the main job on a bundled example and one for all tests."""
    first_screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:30])
    assert all(command.strip() in first_screen for command in README_COMMANDS[:2])
    assert "torchfix --diff examples/" in README_COMMANDS[0]
    assert "-m pytest" in README_COMMANDS[1]


def test_the_readmes_example_exists() -> None:
    """The path of the first command lies in the repository."""
    (example,) = re.findall(r"--diff (\S+)", README_COMMANDS[0])
    assert (ROOT / example).exists()


def test_the_check_runs_the_readmes_test_command() -> None:
    """What the README promises is what is checked."""
    assert "README.md" in (ROOT / ".ci" / "run").read_text()
