"""What other files of the user's project say: definitions by import path, and what the project declares.

A :class:`Project` is plain data plus one function that reads a file of it; other files are parsed when first asked
for, so that a run pays only for the files that its questions reach.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.scopes import Scopes
from torchfix.facts.code.tree import Tree, indexed
from torchfix.facts.project.declarations import Declarations
from torchfix.facts.project.versions import Version
from torchfix.source import SourceError, SourceFile

if TYPE_CHECKING:
    from torchfix.facts import Facts

_UNDECLARED = Declarations()
_MOST_TEXT = 3_000_000  # characters of source whose trees are held; a tree takes some hundred times its text


def _nothing(path: str) -> bytes | None:
    return None


class _Overlay:
    """What reads files, some of them as given here; a class so that it can cross processes."""

    def __init__(self, below: Callable[[str], bytes | None], texts: Mapping[str, bytes]) -> None:
        self._below = below
        self._texts = texts

    def __call__(self, path: str) -> bytes | None:
        return self._texts[path] if path in self._texts else self._below(path)


class Project:
    """One user's project.

    Args:
        root: its folder, absolute, or ``""`` where there is none.
        read: the bytes of a file by its POSIX path relative to ``root``, or None where there is no such file.
        paths: the POSIX paths of its Python files relative to ``root``.
        declarations: what it declares of what it runs on.

    Attributes:
        followed: the star imports that are being followed, by file, module and name, so that a circle of them ends.
    """

    def __init__(
        self,
        root: str = "",
        read: Callable[[str], bytes | None] = _nothing,
        paths: Sequence[str] = (),
        declarations: Declarations = _UNDECLARED,
    ) -> None:
        self.root = root
        self.read = read
        self.paths = paths
        self.declarations = declarations
        self.followed: set[tuple[str, str, str]] = set()
        self._facts: dict[str, Facts | None] = {}
        self._sources: dict[str, SourceFile | None] = {}
        self._trees: dict[ast.Module, Tree] = {}
        self._scopes: dict[Tree, Scopes] = {}
        self._imported: dict[str, list[str]] = defaultdict(list)  # the files whose import statements hold a word
        self._holding: dict[str, tuple[str, ...]] = {}  # the files that hold a word anywhere
        self._mentioning: dict[tuple[str, str], tuple[str, ...]] = {}  # the files that import a file and hold a word
        self._modules: dict[tuple[str, str, int], Facts | None] = {}  # what a dotted name means in a folder
        self._imports: dict[str, tuple[str, ...]] = {}  # the files that a file imports

    @classmethod
    def empty(cls) -> Project:
        """A project that says nothing, for a single text."""
        return cls()

    @classmethod
    def of_texts(cls, modules: Mapping[str, str], declarations: Declarations = _UNDECLARED) -> Project:
        """A project that lives in memory: file texts by relative path."""
        data = {path: text.encode() for path, text in modules.items()}
        return cls("", data.get, tuple(sorted(data)), declarations)

    @property
    def torch(self) -> Version | None:
        """The oldest torch on which the code must run, None where nothing says."""
        return self.declarations.torch.oldest

    @property
    def forks(self) -> bool:
        """Whether the project declares only platforms on which a new process is a fork of its parent."""
        return self.declarations.only_forks

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_facts": {}, "_sources": {}, "_trees": {}, "_scopes": {}, "_modules": {}}

    def reading(self, texts: Mapping[str, bytes]) -> Project:
        """The same project where some files, by relative path, hold other bytes than the disk has."""
        return Project(self.root, _Overlay(self.read, texts), self.paths, self.declarations)

    def relative(self, path: str) -> str:
        """A user's path as the project's own: POSIX, relative to the root; as given where it lies outside."""
        if not self.root:
            return path.replace(os.sep, "/").removeprefix("./")
        try:
            inside = os.path.relpath(os.path.abspath(path), self.root)
        except ValueError:
            return path.replace(os.sep, "/")
        return inside.replace(os.sep, "/")

    def forget(self) -> None:
        """Let go of what was read, once it is much; to be called between two files, so that a big project fits in memory."""
        if sum(len(source.text) for source in self._sources.values() if source is not None) > _MOST_TEXT:
            self._facts, self._sources, self._trees, self._scopes, self._modules = {}, {}, {}, {}, {}

    def facts(self, source: SourceFile) -> Facts:
        """The facts of a file as the other files of the project see it, so that both speak of the same nodes.

        Where its text is no longer the one that :attr:`read` gives, the other files are read anew around the new text.
        """
        from torchfix.facts import Facts  # the package's face imports this module

        path = self.relative(source.path)
        known = self.file(path)
        if known is not None and known.source.text == source.text:
            return known
        around = Project(self.root, self.read, self.paths, self.declarations)
        # Read once, whatever is asked of them anew.
        around._sources, around._trees, around._scopes, around._imported = self._sources, self._trees, self._scopes, self._imported
        around._holding, around._mentioning = self._holding, self._mentioning
        around._imports = {other: found for other, found in self._imports.items() if other != path}
        facts = Facts(source, around)
        around._facts[path] = facts
        return facts

    def file(self, path: str) -> Facts | None:
        """The facts of another file by its relative path; None where it is missing or cannot be parsed."""
        from torchfix.facts import Facts  # the package's face imports this module

        if path not in self._facts:
            source = self._source(path)
            self._facts[path] = Facts(source, self) if source is not None else None
        return self._facts[path]

    def _source(self, path: str) -> SourceFile | None:
        """A file of the project, parsed; a broken one is unknown rather than an error later."""
        if path not in self._sources:
            self._sources[path] = None
            data = self.read(path)
            if data is not None:
                with contextlib.suppress(SourceError):
                    source = SourceFile.from_bytes(os.path.join(self.root, path) if self.root else path, data)
                    source.tree  # noqa: B018  parsed here
                    self._sources[path] = source
        return self._sources[path]

    def tree(self, module: ast.Module) -> Tree:
        """The index of a syntax tree, made once."""
        if module not in self._trees:
            self._trees[module] = indexed(module)
        return self._trees[module]

    def scopes(self, tree: Tree) -> Scopes:
        """The scopes of a syntax tree, made once."""
        if tree not in self._scopes:
            self._scopes[tree] = Scopes(tree)
        return self._scopes[tree]

    def module(self, name: str, importer: str, level: int = 0) -> Facts | None:
        """The facts of the module that ``importer`` means by a dotted name, None where it is not the project's own."""
        itself = os.path.basename(importer) == f"{name.rpartition('.')[2]}.py"
        key = (name, importer if itself else os.path.dirname(importer), level)
        if key not in self._modules:
            found = (self.file(path) for path in self._candidates(name, importer, level))
            self._modules[key] = next((facts for facts in found if facts is not None), None)
        return self._modules[key]

    def modules_in(self, package: str, importer: str) -> list[Facts]:
        """The facts of all modules of a package that ``importer`` means by a dotted name; empty where one of them is not known."""
        for base in self._bases(importer, 0):
            folder = "/".join(part for part in (base, package.replace(".", "/")) if part)
            found = [self.file(path) for path in self.paths if os.path.dirname(path) == folder and not path.endswith("/__init__.py")]
            if found:
                known = [facts for facts in found if facts is not None]
                return known if len(known) == len(found) else []
        return []

    def _candidates(self, name: str, importer: str, level: int) -> Iterator[str]:
        """Where a module may stand; a file that imports its own name means another one (``utils/model.py`` imports ``model``)."""
        tail = name.replace(".", "/")
        for base in self._bases(importer, level):
            stem = "/".join(part for part in (base, tail) if part)
            if tail and f"{stem}.py" != importer:
                yield f"{stem}.py"
            yield f"{stem}/__init__.py" if stem else "__init__.py"

    @staticmethod
    def _bases(importer: str, level: int) -> list[str]:
        """The folders in which an import of ``importer`` looks for a module."""
        folder = os.path.dirname(importer)
        if level:
            for _ in range(level - 1):
                folder = os.path.dirname(folder)
            bases = [folder]
        else:
            bases = [folder]
            while folder != os.path.dirname(folder):
                folder = os.path.dirname(folder)
                bases.append(folder)
            bases.append("src")
        return bases

    def mentions(self, name: str, path: str) -> bool:
        """Whether another Python file of the project imports the file at ``path`` and holds the word ``name``."""
        return bool(self.mentioning(name, path))

    def mentioning(self, name: str, path: str) -> tuple[str, ...]:
        """The other Python files of the project that import the file at ``path`` and hold the word ``name``."""
        if (name, path) not in self._mentioning:
            self._mentioning[name, path] = tuple(self._with_word(name, self.importers(path)))
        return self._mentioning[name, path]

    def imports(self, path: str) -> tuple[str, ...]:
        """The project's files that the file at ``path`` imports, by the import statements in its text; no file is parsed."""
        if path not in self._imports:
            known = self._facts.get(path)
            text = known.source.text.encode() if known is not None else self.read(path) or b""
            found: dict[str, None] = {}
            for level, module, names in _imported(text):
                wanted = [module, *(f"{module}.{name}" if module else name for name in names)]
                found.update(dict.fromkeys(target for name in wanted if (target := self._path_of(name, path, level)) is not None))
            self._imports[path] = tuple(found)
        return self._imports[path]

    def _path_of(self, name: str, importer: str, level: int) -> str | None:
        return next((path for path in self._candidates(name, importer, level) if path in self._known_paths), None)

    @cached_property
    def _known_paths(self) -> frozenset[str]:
        return frozenset(self.paths)

    def holding(self, name: str) -> tuple[str, ...]:
        """The Python files of the project that hold the word ``name``."""
        if name not in self._holding:
            self._holding[name] = tuple(self._with_word(name, self.paths))
        return self._holding[name]

    def _with_word(self, name: str, paths: Iterable[str]) -> Iterator[str]:
        raw = name.encode()
        word = re.compile(rb"\b" + re.escape(raw) + rb"\b")
        return (path for path in paths if raw in (data := self.read(path) or b"") and word.search(data))

    def importers(self, path: str) -> tuple[str, ...]:
        """The other Python files of the project in which an import names the file at ``path``, or one of the same name."""
        stem = os.path.basename(path).removesuffix(".py")
        if stem == "__init__":
            stem = os.path.basename(os.path.dirname(path))
        if not self._imported:
            self._index_imports()
        return tuple(other for other in self._imported.get(stem, ()) if other != path)

    def _index_imports(self) -> None:
        for path in self.paths:
            statements = _IMPORT.findall(self.read(path) or b"")
            for word in dict.fromkeys(word for statement in statements for word in _WORD.findall(statement)):
                self._imported[word.decode("utf-8", "replace")].append(path)


def _imported(text: bytes) -> Iterator[tuple[int, str, list[str]]]:
    """The import statements in a text: the dots in front, the module, and the names that are imported from it."""
    for match in _IMPORT.finditer(text.replace(b"\\\n", b" ")):
        words = match[0].decode("utf-8", "replace").split(None, 1)
        if len(words) < 2:
            continue
        module, _, names = words[1].partition(" import")
        if words[0].strip() == "import":
            yield from ((0, item.split(" as ")[0].strip(), []) for item in words[1].split(","))
        else:
            dots = len(module) - len(module.lstrip("."))
            listed = [item.split(" as ")[0].strip(" ()\n\t") for item in names.split(",")]
            yield dots, module.strip(". "), [item for item in listed if item.isidentifier()]


_IMPORT = re.compile(rb"^[ \t]*(?:from|import)\b[^#\n(]*(?:\([^)]*)?", re.MULTILINE)
_WORD = re.compile(rb"[\w\x80-\xff]+")
