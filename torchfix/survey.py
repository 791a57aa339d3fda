"""The projects that a run meets, and what the engine is given for each of their files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchfix import engine, files, registry
from torchfix.engine import EngineSettings
from torchfix.exclude import Patterns
from torchfix.facts.project.declarations import declared, is_declaring
from torchfix.facts.project.project import Project
from torchfix.facts.project.versions import Range, Version
from torchfix.files import Found
from torchfix.options import rule_options
from torchfix.result import Result
from torchfix.settings import Settings, black_style, tool_table
from torchfix.spanning import Answer, Grounds, Neighbour
from torchfix.style import Style
from torchfix.transform import Selected
from torchfix.usage import UsageError


@dataclass(frozen=True)
class Context:
    """What the files of one project share.

    Args:
        project: the user's files.
        selected: the rules of the run.
        settings: of the engine.
        grounds: which files may change together, and how far they have come.
    """

    project: Project
    selected: tuple[Selected, ...]
    settings: EngineSettings
    grounds: Grounds = field(default_factory=Grounds)

    def on(self, grounds: Grounds) -> Context:
        """The same project where some files have changed."""
        return replace(self, project=self.project.reading(grounds.texts), grounds=grounds)


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

    def advance(self, data: bytes) -> Answer:
        """What becomes of the file when it holds these bytes, or what it asks of other files."""
        context = self.context
        return engine.advance(self.path, data, context.project, self.selected, context.settings, context.grounds)

    def fix(self, data: bytes) -> Result:
        """What becomes of the file by itself when it holds these bytes."""
        return engine.fix(self.path, data, self.context.project, self.selected, self.context.settings)

    @property
    def name(self) -> str:
        """The file's path in its project."""
        return self.context.project.relative(self.path)


@dataclass(frozen=True)
class Members:
    """The files of one project that a run looks at, by their paths in it."""

    context: Context
    jobs: Mapping[str, Job]

    @property
    def grounds(self) -> Grounds:
        """What is known of them before anything has changed."""
        return Grounds({name: Neighbour(job.path, job.ignored) for name, job in self.jobs.items()})

    def on(self, grounds: Grounds, names: Sequence[str]) -> list[Job]:
        """Some of them, on new grounds."""
        context = self.context.on(grounds)
        return [replace(self.jobs[name], context=context) for name in names]


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
        root, marked = self._root(found)
        if root not in self._contexts:
            self._contexts[root] = self._context(root, marked)
        ignored = frozenset(name for patterns, names in self._ignores if patterns.says(found.real) for name in names)
        return Job(found.path, found.real, self._contexts[root], ignored)

    def members(self, root: str, found: Iterable[Found]) -> Members:
        """The files of a project that was met, out of all that were found."""
        jobs = [self.job(entry) for entry in found if self._root(entry)[0] == root]
        return Members(self._contexts[root], {job.name: job for job in jobs})

    def folders(self, found: Iterable[Found]) -> frozenset[str]:
        """The folders of some files and those above them, up to the root of each one's project."""
        folders: set[str] = set()
        for entry in found:
            root, _ = self._root(entry)
            for folder in files.upward(os.path.dirname(entry.real)):
                if folder in folders:
                    break
                folders.add(folder)
                if folder == root:
                    break
        return frozenset(folders)

    def _root(self, found: Found) -> tuple[str, bool]:
        folder = os.path.dirname(found.real)
        if folder not in self._roots:
            self._roots[folder] = files.project_root(folder)
        return self._roots[folder]

    @property
    def torch(self) -> frozenset[Version | None]:
        """The oldest torch of each project met so far; None where it is not declared."""
        return frozenset(context.project.torch for context in self._contexts.values())

    @property
    def warnings(self) -> tuple[str, ...]:
        """What could not be read of the projects met so far, and what holds instead."""
        return tuple(dict.fromkeys(self._warnings))

    def _context(self, root: str, marked: bool) -> Context:
        reader = files.ProjectReader(root)
        declarations = declared(filter(is_declaring, files.names_at_top(root)), reader)
        if self._settings.torch is not None:
            declarations = replace(declarations, torch=Range(self._settings.torch))
        paths = files.ProjectPaths(root, deep=marked)  # what lies under a folder without a mark may be anybody's
        project = Project(root, reader, paths, declarations)
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
