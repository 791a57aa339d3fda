"""What a project declares: the range of torch and of Python that it runs on, and its operating systems.

Read from the files by which projects are installed; what a README says declares nothing. Where several declarations
speak of one package, the range reaches from the lowest bound to the highest, since any of them may be followed.
"""

from __future__ import annotations

import ast
import configparser
import posixpath
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchfix.facts.project.versions import Range, joined, range_of

_NO_MORE_FORKS = (3, 14)  # Linux too starts processes afresh from here on (multiprocessing, "Contexts and start methods")
_PIP_NAMES = ("torch", "pytorch")  # the second is no package of pip's, yet many write it
_CONDA_NAMES = ("pytorch", "pytorch-gpu", "pytorch-cpu", "torch")

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*(?:\(([^)]*)\)|(@.*|[=<>~!^*\d].*))?\s*$")
_CONDA = re.compile(r"""\s*(?:[\w./-]+::)?([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*([=<>~!*\d].*)?$""")
_WHEEL = re.compile(r"(?:^|/)torch-(\d+\.\d+[^-/]*)-[^/]*\.whl")
_CLASSIFIER = re.compile(r"^Programming Language :: Python :: (\d+)\.(\d+)$")
_SYSTEM = "Operating System :: "
_ITEM = re.compile(r"""^(?P<margin>\s*)-\s+["']?(?P<words>[^"'#]+?)["']?\s*(?:\s#.*)?$""")
_KEY = re.compile(r"(\w+):\s*\[?(.*?)\]?\s*$")
_INCLUDE = re.compile(r"\s*(?:-r|-c|--requirement|--constraint)[\s=]*(\S+)")


@dataclass(frozen=True)
class Declarations:
    """What a project declares of what it runs on.

    Args:
        torch: the range of torch.
        python: the range of Python.
        systems: the operating systems that its classifiers name.
    """

    torch: Range = Range()
    python: Range = Range()
    systems: frozenset[str] = frozenset()

    @property
    def only_forks(self) -> bool:
        """Whether Python surely starts a process as a fork of its parent: on Linux alone, and below Python 3.14."""
        below = self.python.below
        return self.systems == {"POSIX :: Linux"} and below is not None and below <= _NO_MORE_FORKS


def is_declaring(name: str) -> bool:
    """Whether a file of this name, at the top of a project or in its folder ``requirements``, declares what it needs."""
    folder, base = posixpath.split(name.lower())
    if base.endswith((".txt", ".in")) and (folder == "requirements" or base.startswith("requirements")):
        return True
    return not folder and (
        base in ("pyproject.toml", "setup.cfg", "setup.py")
        or (base.endswith((".yml", ".yaml")) and base.startswith(("environment", "conda")))
    )


def declared(names: Iterable[str], read: Callable[[str], bytes | None]) -> Declarations:
    """What a project declares.

    Args:
        names: its declaring files, relative to its root.
        read: the bytes of a file by such a name, None where there is none; also asked for files that others include.
    """
    found = _Found()
    waiting = list(names)
    seen: set[str] = set()
    while waiting:
        name = posixpath.normpath(waiting.pop())
        data = read(name) if name not in seen else None
        seen.add(name)
        if data is not None:
            waiting += _read(name, data.decode("utf-8-sig", "replace"), found)
    return Declarations(joined(found.torch), joined(found.python or found.classified), frozenset(found.systems))


class _Found:
    """The ranges that have been met so far, one a declaration."""

    def __init__(self) -> None:
        self.torch: list[Range] = []
        self.python: list[Range] = []
        self.classified: list[Range] = []
        self.systems: set[str] = set()

    def requirement(self, words: str) -> None:
        """Note a requirement as pip reads it (PEP 508), or the address of a wheel."""
        words = re.split(r"\s#|\s--hash|;", words)[0].strip()
        wheel = _WHEEL.search(words.replace("%2B", "+"))
        match = _REQUIREMENT.match(words)
        if wheel is not None:
            self.torch.append(range_of(f"=={wheel[1]}"))
        elif match is not None and match[1].lower() in _PIP_NAMES:
            self.torch.append(range_of(match[2] or match[3] or ""))

    def conda(self, words: str) -> None:
        """Note a package as conda reads it: ``pytorch=1.9=py3.8_cuda11.1_0`` is any 1.9."""
        match = _CONDA.match(words)
        if match is None:
            return
        limits = re.sub(r"^(==?[\w.*+]+)=.*|^(\d[\w.*+]*)[=\s].*", r"\1\2", (match[2] or "").strip())
        if match[1].lower() in _CONDA_NAMES:
            self.torch.append(range_of(limits, fuzzy=True))
        elif match[1].lower() == "python":
            self.python.append(range_of(limits, fuzzy=True))

    def classifier(self, words: str) -> None:
        """Note a classifier of the Python Package Index."""
        match = _CLASSIFIER.match(words.strip())
        if match is not None:
            self.classified.append(Range((int(match[1]), int(match[2]))))
        elif words.strip().startswith(_SYSTEM):
            self.systems.add(words.strip()[len(_SYSTEM) :])


def _read(name: str, text: str, found: _Found) -> Iterator[str]:
    """Note what one file declares; gives the names of the files that it includes."""
    if name.endswith(".toml"):
        yield from _read_toml(text, found)
    elif name.endswith(".cfg"):
        yield from _read_config(text, found)
    elif name.endswith(".py"):
        yield from _read_setup(text, found)
    elif name.endswith((".yml", ".yaml")):
        _read_environment(text, found)
    else:
        folder = posixpath.dirname(name)
        yield from (posixpath.join(folder, inner) for inner in _read_requirements(text, found))


# requirements.txt -----------------------------------------------------------------------------------------------


def _read_requirements(text: str, found: _Found) -> Iterator[str]:
    for line in text.replace("\\\r\n", "").replace("\\\n", "").splitlines():
        included = _INCLUDE.match(line)
        if included is not None:
            yield included[1]
        elif not line.lstrip().startswith("#"):
            found.requirement(line)


# pyproject.toml -------------------------------------------------------------------------------------------------


def _read_toml(text: str, found: _Found) -> Iterator[str]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return  # a broken file declares nothing, and is not ours to refuse
    project = _table(table, "project")
    if isinstance(project.get("requires-python"), str):
        found.python.append(range_of(project["requires-python"]))
    for words in _words(project.get("classifiers")):
        found.classifier(words)
    tool = _table(table, "tool")
    listed: list[object] = [project.get("dependencies"), *_table(project, "optional-dependencies").values()]
    listed += _table(table, "dependency-groups").values()
    listed += _table(tool, "pdm", "dev-dependencies").values()
    listed += [_table(tool, "uv").get("dev-dependencies"), _table(tool, "uv").get("constraint-dependencies")]
    listed += [_table(item).get("dependencies") for item in _table(tool, "hatch", "envs").values()]
    for words in (words for item in listed for words in _words(item)):
        found.requirement(words)
    _read_poetry(_table(tool, "poetry"), found)
    for key in ("dependencies", "optional-dependencies"):
        dynamic = _table(tool, "setuptools", "dynamic").get(key)
        tables = [dynamic] if key == "dependencies" else list(_table(dynamic).values())
        for item in tables:
            named = _table(item).get("file")
            yield from [named] if isinstance(named, str) else _words(named)


def _read_poetry(poetry: Mapping[str, Any], found: _Found) -> None:
    groups = [poetry.get("dependencies"), poetry.get("dev-dependencies")]
    groups += [_table(group).get("dependencies") for group in _table(poetry, "group").values()]
    for group in map(_table, groups):
        for name, given in group.items():
            for item in given if isinstance(given, list) else [given]:
                limits = item if isinstance(item, str) else _table(item).get("version")
                address = _table(item).get("url")
                if isinstance(address, str):
                    found.requirement(f"{name} @ {address}")
                elif isinstance(limits, str) and name.lower() in _PIP_NAMES:
                    found.torch.append(range_of(limits))
                elif isinstance(limits, str) and name == "python":
                    found.python.append(range_of(limits))


def _table(value: object, *keys: str) -> Mapping[str, Any]:
    """The table that stands under some keys, empty where there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _words(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


# setup.cfg and setup.py -----------------------------------------------------------------------------------------


def _read_config(text: str, found: _Found) -> Iterator[str]:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return
    options = dict(parser.items("options")) if parser.has_section("options") else {}
    extras = [value for _, value in parser.items("options.extras_require")] if parser.has_section("options.extras_require") else []
    if options.get("python_requires"):
        found.python.append(range_of(options["python_requires"]))
    if parser.has_section("metadata"):
        for line in (parser.get("metadata", "classifiers", fallback="") or "").splitlines():
            found.classifier(line)
    for value in (options.get("install_requires", ""), *extras):
        if value.strip().startswith("file:"):
            yield from (name.strip() for name in value.strip()[len("file:") :].split(","))
            continue
        for line in value.splitlines():
            found.requirement(line)


def _read_setup(text: str, found: _Found) -> Iterator[str]:
    """Read a script: every text in it that is as a whole a requirement of torch, a classifier or the name of a list.

    Where such a text is kept, in the call, in a variable, in a function that gives a list, makes no difference.
    """
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    constants = {
        target.id: statement.value.value
        for statement in module.body
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(module):
        words = _filled(node, constants)
        if words is not None and "\n" not in words:
            found.requirement(words)
            found.classifier(words)
            if words.endswith((".txt", ".in")) and " " not in words:
                yield words
        if isinstance(node, ast.keyword) and node.arg == "python_requires":
            given = constants.get(node.value.id) if isinstance(node.value, ast.Name) else _filled(node.value, constants)
            if isinstance(given, str):
                found.python.append(range_of(given))


def _filled(node: ast.AST, constants: Mapping[str, object]) -> str | None:
    """The text that a constant is, or an f-string over the module's constants."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if not isinstance(node, ast.JoinedStr):
        return None
    parts: list[object] = []
    for item in node.values:
        inner = item.value if isinstance(item, ast.FormattedValue) else item
        parts.append(inner.value if isinstance(inner, ast.Constant) else constants.get(inner.id) if isinstance(inner, ast.Name) else None)
    return None if None in parts else "".join(map(str, parts))


# environment.yml ------------------------------------------------------------------------------------------------


def _read_environment(text: str, found: _Found) -> None:
    """Read the lists of an environment line by line: conda's own packages, and those below ``- pip:``."""
    pip_margin: int | None = None
    section = ""
    for line in text.splitlines():
        match = _ITEM.match(line)
        if match is None:
            key = _KEY.match(line)
            section = key[1] if key is not None else section
            for words in key[2].split(",") if key is not None and section == "dependencies" else ():
                found.conda(words.strip(" '\""))
            continue
        if section != "dependencies":
            continue
        margin, words = len(match["margin"]), match["words"].strip()
        if pip_margin is not None and margin <= pip_margin:
            pip_margin = None
        if words == "pip:":
            pip_margin = margin
        elif pip_margin is None:
            found.conda(words)
        else:
            found.requirement(words)
