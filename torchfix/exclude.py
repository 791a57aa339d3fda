"""Which files and folders a walk leaves out."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

_FOLDERS = frozenset({"site-packages", "build", "dist", "node_modules", "__pycache__"})


class Patterns:
    """Patterns in the manner of ``.gitignore`` that count from one folder.

    Args:
        folder: the folder, absolute.
        lines: the patterns; a line that is none is passed over, as git does.
    """

    def __init__(self, folder: str, lines: Sequence[str]) -> None:
        self.folder = folder
        self._spec = _spec(lines) if lines else None

    def says(self, path: str, is_folder: bool = False) -> bool | None:
        """Whether the patterns take an absolute path in (True), let it out again (False), or say nothing of it."""
        if self._spec is None or not inside(path, self.folder):
            return None
        relative = os.path.relpath(path, self.folder).replace(os.sep, "/")
        return self._spec.check_file(f"{relative}/" if is_folder else relative).include


def _spec(lines: Sequence[str]) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec  # as dear as three bare starts of Python, and often not needed

    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError:
        return GitIgnoreSpec.from_lines([line for line in lines if _is_pattern(line)])


def _is_pattern(line: str) -> bool:
    from pathspec import GitIgnoreSpec

    try:
        GitIgnoreSpec.from_lines([line])
    except ValueError:
        return False
    return True


def inside(path: str, folder: str) -> bool:
    """Whether an absolute path is a folder itself or lies in it."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


class Exclusion:
    """What one walk leaves out, by name, by ``.gitignore`` and by the user's own patterns.

    Args:
        top: the folder above which no ``.gitignore`` is asked, absolute: the git work tree's, or the walk's own.
        patterns: the user's.
        read: the bytes of a file, None where there is none.
    """

    def __init__(self, top: str, patterns: Patterns, read: Callable[[str], bytes | None]) -> None:
        self.top = top
        self._patterns = patterns
        self._read = read
        self._chains: dict[str, tuple[Patterns, ...]] = {}

    def leaves_out(self, folder: str, name: str, is_folder: bool) -> bool:
        """Whether an entry of a folder that is itself walked is left out."""
        path = os.path.join(folder, name)
        if is_folder and (name.startswith(".") or name in _FOLDERS or self._read(os.path.join(path, "pyvenv.cfg")) is not None):
            return True
        return bool(self._patterns.says(path, is_folder)) or self.ignored(path, is_folder)

    def ignored(self, path: str, is_folder: bool) -> bool:
        """Whether a ``.gitignore`` above a path ignores it; the nearest that speaks of it decides."""
        for patterns in self._chain(os.path.dirname(path)):
            said = patterns.says(path, is_folder)
            if said is not None:
                return said
        return False

    def _chain(self, folder: str) -> tuple[Patterns, ...]:
        """The ``.gitignore`` files that hold for a folder's entries, the nearest first."""
        if folder not in self._chains:
            data = self._read(os.path.join(folder, ".gitignore")) if inside(folder, self.top) else None
            own = (Patterns(folder, data.decode("utf-8", "replace").splitlines()),) if data else ()
            above = self._chain(os.path.dirname(folder)) if folder != self.top and inside(folder, self.top) else ()
            self._chains[folder] = own + above
        return self._chains[folder]
