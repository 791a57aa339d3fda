"""Which transforms there are, and which of them a run uses.

No transform is known by name: the package ``torchfix.transforms`` is walked, and other distributions add theirs under
the entry point group ``torchfix.transforms``.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from torchfix.transform import Default, Transform
from torchfix.usage import UsageError, nearest

PACKAGE = "torchfix.transforms"
"""The package that holds our own transforms, and the entry point group of everybody else's."""


@lru_cache(maxsize=1)
def discover() -> tuple[Transform, ...]:
    """Every transform that is installed, by group and name.

    Raises:
        UsageError: a module or an entry point offers no transform, or two offer the same name; or Python runs without
            docstrings, in which the rules say what they do.
    """
    if sys.flags.optimize > 1:
        raise UsageError("the rules explain themselves in docstrings, which Python drops under -OO; unset PYTHONOPTIMIZE")
    found: dict[str, Transform] = {}
    for origin, offered in (*_own(), *_plugins()):
        if not isinstance(offered, Transform):
            raise UsageError(f"{origin} offers no transform: it needs a module-level TRANSFORM")
        if offered.name in found:
            raise UsageError(f"{origin} offers the rule {offered.name}, which exists already")
        found[offered.name] = offered
    return tuple(sorted(found.values(), key=lambda transform: (transform.group, transform.name)))


def _own() -> Iterator[tuple[str, object]]:
    try:
        package = importlib.import_module(PACKAGE)
    except ModuleNotFoundError as error:  # a bare checkout, in which the rules lie beside the package
        raise UsageError("the rules are not installed; install this checkout with 'pip install -e .'") from error
    for module in pkgutil.iter_modules(package.__path__, f"{PACKAGE}."):
        yield module.name, getattr(importlib.import_module(module.name), "TRANSFORM", None)


def _plugins() -> Iterator[tuple[str, object]]:
    from importlib.metadata import entry_points

    for point in sorted(entry_points(group=PACKAGE), key=lambda point: point.name):
        origin = f"the plugin {point.name} ({point.value})"
        try:
            offered = point.load()
        except (ImportError, AttributeError, NameError, SyntaxError, TypeError, ValueError) as error:
            raise UsageError(f"{origin} cannot be loaded: {error}; reinstall or remove it") from error
        yield origin, getattr(offered, "TRANSFORM", offered)


def find(name: str) -> Transform:
    """The transform of that name.

    Raises:
        UsageError: there is none; names the nearest.
    """
    for transform in discover():
        if transform.name == name:
            return transform
    names = [transform.name for transform in discover()]
    raise UsageError(f"there is no rule {name}{nearest(name, names)} ('torchfix rules' lists them all)")


def named(words: Iterable[str], transforms: Sequence[Transform]) -> frozenset[str]:
    """The names of the rules that some words, rule or group names, stand for.

    Raises:
        UsageError: a word is neither; names the nearest.
    """
    found: set[str] = set()
    for word in words:
        meant = {transform.name for transform in transforms if word in (transform.name, transform.group)}
        if not meant:
            known = {name for transform in transforms for name in (transform.name, transform.group)}
            raise UsageError(f"there is no rule or group {word}{nearest(word, sorted(known))} ('torchfix rules' lists them all)")
        found |= meant
    return frozenset(found)


def select(transforms: Sequence[Transform], chosen: Sequence[str], ignored: Sequence[str]) -> tuple[Transform, ...]:
    """The transforms that a run uses.

    Args:
        transforms: all there are.
        chosen: names of rules and groups; a rule that is off by default runs only when it or its group is among them.
            Empty for every rule that is not off.
        ignored: names of rules and groups that do not run, whatever ``chosen`` says.

    Raises:
        UsageError: a name is unknown.
    """
    wanted = named(chosen, transforms) if chosen else {t.name for t in transforms if t.default is not Default.OFF}
    unwanted = named(ignored, transforms)
    return tuple(transform for transform in transforms if transform.name in wanted and transform.name not in unwanted)
