"""What a run was asked to do: command line over configuration file over defaults, frozen.

A value is read by the same function wherever it stands, so that the command line and a file accept the same words and
refuse them with the same message.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchfix import files
from torchfix.transform import Risk
from torchfix.usage import UsageError, nearest, nearest_or_all

if TYPE_CHECKING:
    from torchfix.style import Style

FORMATS = ("auto", "changed", "file", "off")
OUTPUT_FORMATS = ("text", "json")
COLORS = ("auto", "always", "never")
RISKS = tuple(risk.word for risk in Risk)


@dataclass(frozen=True)
class Settings:
    """The options of a run that a configuration file may hold too.

    Args:
        select: names of rules and groups to run; empty for every rule that is not off.
        ignore: names of rules and groups that do not run.
        risk: the highest risk that may be changed.
        torch: the oldest torch that the code must run on; None for what the project declares.
        num_workers: the expression for worker counts; None for the rules' own.
        format: how Black is used.
        output_format: ``text`` or ``json``.
        statistics: whether counts by rule are shown.
        quiet: whether the summary is left out.
        verbose: whether suppressed findings, unused suppressions and clean files are shown.
        color: when to use colours.
        jobs: the number of processes; None for one a core.
        exclude: patterns in the manner of ``.gitignore`` of files that are not looked at.
        exclude_folder: the folder that ``exclude`` counts from.
        force_exclude: whether exclusions hold for files named on the command line too.
        allow_dirty: whether files with uncommitted changes may be written.
        exit_zero: whether the exit code 1 becomes 0.
        per_file_ignores: names of rules and groups that do not run, by pattern in the manner of ``.gitignore``.
        rules: options by rule name, checked where the rules are known (:mod:`torchfix.options`).
        origin: the configuration file that was read; None if there is none.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    risk: Risk = Risk.BEHAVIOR
    torch: tuple[int, int] | None = None
    num_workers: str | None = None
    format: str = "auto"
    output_format: str = "text"
    statistics: bool = False
    quiet: bool = False
    verbose: bool = False
    color: str = "auto"
    jobs: int | None = None
    exclude: tuple[str, ...] = ()
    exclude_folder: str = ""
    force_exclude: bool = False
    allow_dirty: bool = False
    exit_zero: bool = False
    per_file_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    origin: str | None = None


def load(command_line: Mapping[str, object], start: str, config: str | None = None, isolated: bool = False) -> Settings:
    """The settings of a run, with the configuration file that holds for it.

    Args:
        command_line: values by field name; None and missing mean "not given".
        start: the folder from which a file is looked for upward, absolute: the nearest that holds ``torchfix.toml``, or
            a ``pyproject.toml`` with ``[tool.torchfix]``.
        config: the file to use instead.
        isolated: whether no file is used.

    Raises:
        UsageError: a file cannot be read, or holds what :func:`resolve` refuses.
    """
    if config is not None and isolated:
        raise UsageError("--config and --isolated exclude each other")
    origin, table = (None, None) if isolated else _named(config) if config is not None else _nearest_file(start)
    return resolve(command_line, table or {}, origin, os.getcwd())


def _named(config: str) -> tuple[str, Mapping[str, Any]]:
    table = _table_of(config, files.read_toml(config))
    if table is None:
        raise UsageError(f"--config {config}: there is no [tool.torchfix] in it")
    return config, table


def _nearest_file(start: str) -> tuple[str | None, Mapping[str, Any] | None]:
    for folder in files.upward(start):
        own, shared = os.path.join(folder, "torchfix.toml"), os.path.join(folder, "pyproject.toml")
        if os.path.exists(own):
            return files.shown(own), files.read_toml(own)
        data = files.read_if_there(shared)
        if data is not None and b"torchfix" in data:
            table = _table_of(shared, files.read_toml(shared))
            if table is not None:
                return files.shown(shared), table
    return None, None


def resolve(command_line: Mapping[str, object], document: Mapping[str, object], origin: str | None, folder: str) -> Settings:
    """The settings of a run.

    Args:
        command_line: values by field name; None and missing mean "not given".
        document: the table of a configuration file, as TOML gives it; empty if there is none.
        origin: that file's path, for messages.
        folder: the folder that the command ran in.

    Raises:
        UsageError: an unknown key, or a value that an option does not take.
    """
    values: dict[str, Any] = {"origin": origin, "exclude_folder": folder}
    for key, value in document.items():
        where = f"{origin}: {key}"
        if key not in _KEYS:
            raise UsageError(f"{where} is not a key of torchfix's configuration{_hint(key)}")
        values[_field(key)] = read_value(key, value, where)
    if origin is not None:
        values["exclude_folder"] = os.path.dirname(os.path.abspath(origin))
    given = {name: value for name, value in command_line.items() if value is not None and value != []}
    for name, value in given.items():
        key = name.replace("_", "-")
        values[name] = read_value(key, value, f"--{key}")
    if "exclude" in given:
        values["exclude_folder"] = folder
    tables = values.get("rules", {})
    values["rules"] = {rule: {key: value for key, value in table.items() if _field(key) not in given} for rule, table in tables.items()}
    return Settings(**values)


def _table_of(path: str, document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Torchfix's own table in a parsed TOML file, None where it has none.

    ``pyproject.toml`` has it under ``[tool.torchfix]``; any other file holds the keys at its top.

    Raises:
        UsageError: what stands there is no table.
    """
    return tool_table(document, "torchfix", path) if os.path.basename(path) == "pyproject.toml" else document


def tool_table(document: Mapping[str, Any], tool: str, path: str) -> Mapping[str, Any] | None:
    """The table ``[tool.NAME]`` of a parsed ``pyproject.toml``, None where it has none.

    Raises:
        UsageError: what stands there is no table.
    """
    tools = document.get("tool", {})
    table = tools.get(tool) if isinstance(tools, dict) else None
    if table is not None and not isinstance(table, dict):
        raise UsageError(f"{files.shown(path)}: [tool.{tool}] must be a table")
    return table


def black_style(table: Mapping[str, Any]) -> Style:
    """Black's settings out of its table; what Black itself would refuse counts as not given."""
    from torchfix.style import Style  # it reads code, which settings alone do not need

    length = table.get("line-length")
    versions = table.get("target-version")
    listed = versions if isinstance(versions, list) else [versions]
    return Style(
        line_length=length if type(length) is int and length > 0 else None,
        skip_string_normalization=table.get("skip-string-normalization") is True,
        skip_magic_trailing_comma=table.get("skip-magic-trailing-comma") is True,
        preview=table.get("preview") is True,
        target_versions=tuple(version for version in listed if isinstance(version, str)),
        configured=True,
    )


def read_value(key: str, value: object, where: str) -> object:
    """The value of an option.

    Args:
        key: the option's name with dashes.
        value: as TOML or the command line gives it.
        where: what the message names.

    Raises:
        UsageError: the option does not take the value.
    """
    try:
        return _KEYS[key](value)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error


def _field(key: str) -> str:
    return key.replace("-", "_")


def _hint(key: str) -> str:
    if key in _COMMAND_LINE_ONLY:
        return f"; --{key} is given on the command line only"
    return nearest_or_all(key, _KEYS)


def _names(value: object) -> tuple[str, ...]:
    return tuple(name for words in _texts(value, "names") for word in words.split(",") if (name := word.strip()))


def _selected(value: object) -> tuple[str, ...]:
    names = _names(value)
    if not names:
        raise ValueError("it names no rule or group")
    return names


def _texts(value: object, kind: str) -> tuple[str, ...]:
    texts = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"expected {kind}, found {value!r}")
    return texts


def _choice(*known: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value not in known:
            raise ValueError(f"{value!r} is none of {', '.join(known)}{nearest(str(value), known)}")
        return str(value)

    return read


def _risk(value: object) -> Risk:
    return Risk[_choice(*RISKS)(value).upper()]


def _version(value: object) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:\.(\d+))?(?:\.\d+)*(?:\+\S*)?", value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"expected a version such as '2.4', found {value!r}")
    return int(match[1]), int(match[2] or 0)


def _workers(value: object) -> str:
    text = str(value) if type(value) is int else value
    if not isinstance(text, str):
        raise ValueError(f"expected a Python expression, found {value!r}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text!r} is no Python expression") from error
    if not _may_count(tree):
        raise ValueError(f"{text!r} is no number of workers")
    return text.strip()


def _may_count(tree: ast.expr) -> bool:
    """Whether an expression may give a number of workers, in any function that it is written into."""
    if any(isinstance(node, (ast.Await, ast.Yield, ast.YieldFrom)) for node in ast.walk(tree)):
        return False
    try:
        number = ast.literal_eval(tree)
    except (ValueError, TypeError):
        return not isinstance(tree, (ast.Lambda, ast.JoinedStr, ast.GeneratorExp))
    return type(number) is int and number >= 0


def _switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, found {value!r}")
    return value


def _count(value: object) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"expected a number of processes, 1 or more, found {value!r}")
    return value


def _patterns(value: object) -> tuple[str, ...]:
    return _texts(value, "patterns such as 'tests/**'")


def _per_file_ignores(value: object) -> Mapping[str, tuple[str, ...]]:
    if not isinstance(value, dict):
        raise ValueError(f"expected a table of patterns with the rules to ignore there, found {value!r}")
    return {pattern: _names(names) for pattern, names in value.items()}


def _rules(value: object) -> Mapping[str, Mapping[str, Any]]:
    if not isinstance(value, dict) or not all(isinstance(table, dict) for table in value.values()):
        raise ValueError("expected a table of options for each rule, [tool.torchfix.rules.NAME]")
    return value


_KEYS: Mapping[str, Callable[[object], object]] = {
    "select": _selected,
    "ignore": _names,
    "risk": _risk,
    "torch": _version,
    "num-workers": _workers,
    "format": _choice(*FORMATS),
    "output-format": _choice(*OUTPUT_FORMATS),
    "statistics": _switch,
    "quiet": _switch,
    "verbose": _switch,
    "color": _choice(*COLORS),
    "jobs": _count,
    "exclude": _patterns,
    "force-exclude": _switch,
    "allow-dirty": _switch,
    "exit-zero": _switch,
    "per-file-ignores": _per_file_ignores,
    "rules": _rules,
}
"""How the value of each key is read; the keys are the long options."""

_COMMAND_LINE_ONLY = ("diff", "apply", "output-file", "config", "isolated", "stdin-filename")
"""What a file of the project may not decide: whether its user's files are written, and where else."""
