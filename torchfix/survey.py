"""The projects that a run meets, and what the engine is given for each of their files."""

from __future__ import annotations

import os
from dataclasses import dataclass

from torchfix import engine, files, registry
from torchfix.engine import EngineSettings
from torchfix.exclude import Patterns
from torchfix.facts.project import Project, Version, declared, only_forks
from torchfix.files import Found
from torchfix.options import rule_options
from torchfix.result import Result
from torchfix.settings import Settings, black_style, tool_table
from torchfix.style import Style
from torchfix.transform import Selected
from torchfix.usage import UsageError


@dataclass(frozen=True)
class Context:
    """What the files of one project share."""

    project: Project
    selected: tuple[Selected, ...]
    settings: EngineSettings


@dataclass(frozen=True)
class Job:
    """One file for the engine: what it is called, where it lies, and which rules its place forbids."""

    path: str
    real: str
    context: Context
    ignored: frozenset[str] = frozenset()

    @property
    def selected(self) -> tuple[Selected, ...]:
        """The rules that run on this file."""
        return tuple(choice for choice in self.context.selected if choice.transform.name not in self.ignored)

    def fix(self, data: bytes) -> Result:
        """What becomes of the file when it holds these bytes."""
        return engine.fix(self.path, data, self.context.project, self.selected, self.context.settings)


class Survey:
    """The projects that a run meets, each looked at once."""

    def __init__(self, settings: Settings) -> None:
        known = registry.discover()
        chosen = registry.select(known, settings.select, settings.ignore)
        for rule in settings.rules:
            registry.find(rule)
        options = {transform.name: rule_options(transform, settings) for transform in known}
        self._settings = settings
        self._selected = tuple(Selected(transform, options[transform.name]) for transform in chosen)
        folder = os.path.dirname(os.path.realpath(settings.origin)) if settings.origin else ""
        self._ignores = [(Patterns(folder, (glob,)), registry.named(words, known)) for glob, words in settings.per_file_ignores.items()]
        self._contexts: dict[str, Context] = {}
        self._roots: dict[str, tuple[str, bool]] = {}
        self._warnings: list[str] = []

    def concerns(self, data: bytes) -> bool:
        """Whether a file may hold anything for some rule of the run."""
        return any(choice.concerns(data) for choice in self._selected)

    def job(self, found: Found) -> Job:
        """What the engine needs for one file."""
        folder = os.path.dirname(found.real)
        if folder not in self._roots:
            self._roots[folder] = files.project_root(folder)
        root, marked = self._roots[folder]
        if root not in self._contexts:
            self._contexts[root] = self._context(root, marked)
        ignored = frozenset(name for patterns, names in self._ignores if patterns.says(found.real) for name in names)
        return Job(found.path, found.real, self._contexts[root], ignored)

    @property
    def torch(self) -> frozenset[Version | None]:
        """The oldest torch of each project met so far; None where it is not declared."""
        return frozenset(context.project.torch for context in self._contexts.values())

    @property
    def warnings(self) -> tuple[str, ...]:
        """What could not be read of the projects met so far, and what holds instead."""
        return tuple(dict.fromkeys(self._warnings))

    def _context(self, root: str, marked: bool) -> Context:
        texts = files.declarations(root)
        torch, python = declared(texts)
        torch = self._settings.torch or torch
        paths = files.ProjectPaths(root, deep=marked)  # what lies under a folder without a mark may be anybody's
        project = Project(root, files.ProjectReader(root), paths, torch, python, only_forks(texts))
        engine_settings = EngineSettings(self._settings.risk, self._settings.format, self._style(root))
        return Context(project, self._selected, engine_settings)

    def _style(self, root: str) -> Style:
        """Black's settings for a project; its defaults where the file that may hold them is broken, for it is not ours to refuse."""
        try:
            return _style(root)
        except UsageError as error:
            self._warnings.append(f"{error}; Black's defaults are used")
            return Style()


def _style(root: str) -> Style:
    """Black's settings for a project: the ``[tool.black]`` of the nearest ``pyproject.toml`` in its git work tree.

    Raises:
        UsageError: a file that names Black is no TOML, or has something else than a table there.
    """
    top = files.git_work_tree(root) or root
    for folder in files.upward(root):
        path = os.path.join(folder, "pyproject.toml")
        data = files.read_if_there(path)
        if data is not None and b"black" in data:
            table = tool_table(files.read_toml(path), "black", path)
            if table is not None:
                return black_style(table)
        if folder == top:
            break
    return Style()
