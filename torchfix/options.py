"""A rule's own options, out of its table in the configuration file."""

from __future__ import annotations

import types
import typing
from dataclasses import fields
from typing import Any

from torchfix.settings import Settings, read_value
from torchfix.transform import Transform
from torchfix.usage import UsageError, nearest_or_all

_SHARED = ("num_workers",)
"""Options of a run that every rule with an option of the same name takes over, and reads alike."""


def rule_options(transform: Transform, settings: Settings) -> Any:
    """The options of one rule: its defaults, the run's options of the same name, its own table.

    Raises:
        UsageError: its table holds an unknown key or a value of another type.
    """
    hints = typing.get_type_hints(transform.options)
    known = [option.name for option in fields(transform.options)]
    values = {name: value for name in _SHARED if name in known and (value := getattr(settings, name)) is not None}
    for key, value in settings.rules.get(transform.name, {}).items():
        where = f"{settings.origin}: rules.{transform.name}.{key}"
        name = key.replace("-", "_")
        if name not in known:
            words = [option.replace("_", "-") for option in known]
            raise UsageError(f"{where}: the rule has no such option{nearest_or_all(key, words)}")
        if name in _SHARED:
            values[name] = read_value(key, value, where)
            continue
        if not _fits(value, hints[name]):
            raise UsageError(f"{where}: expected {_type_words(hints[name])}, found {value!r}")
        values[name] = tuple(value) if isinstance(value, list) else value
    return transform.options(**values)


def _fits(value: object, hint: Any) -> bool:
    """Whether a value read from TOML may be given to a field with this type hint."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is tuple:
        return isinstance(value, list) and all(_fits(item, arguments[0]) for item in value)
    if hint is float:
        return type(value) in (int, float)
    return type(value) is hint


def _type_words(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type_words(option) for option in arguments if option is not type(None))
    if origin is typing.Literal:
        return f"one of {', '.join(map(repr, arguments))}"
    if origin is tuple:
        return f"a list, each {_type_words(arguments[0])}"
    return {str: "text in quotes", int: "a whole number", float: "a number", bool: "true or false"}.get(hint, str(hint))
