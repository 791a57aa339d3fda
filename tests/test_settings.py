"""Command line over configuration file over defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchfix.settings import Settings, black_style, load, resolve
from torchfix.style import Style
from torchfix.transform import Risk
from torchfix.usage import UsageError


def from_file(document: dict[str, Any], **command_line: object) -> Settings:
    return resolve(command_line, document, "torchfix.toml", "/here")


def test_nothing_given_is_the_defaults() -> None:
    """Without command line and file every option has its default."""
    assert resolve({"risk": None, "select": []}, {}, None, "/here") == Settings(exclude_folder="/here")


def test_a_file_sets_every_option_by_its_long_name() -> None:
    """Keys are the long options with dashes, and values are read as on the command line."""
    document: dict[str, Any] = {
        "select": ["data", "amp-loop"],
        "ignore": "toys, zoo",
        "risk": "numeric",
        "torch": "2.4",
        "num-workers": 4,
        "format": "changed",
        "output-format": "json",
        "statistics": True,
        "jobs": 3,
        "exclude": ["old/"],
        "force-exclude": True,
        "per-file-ignores": {"tests/**": ["data"]},
    }

    settings = from_file(document)

    assert settings == Settings(
        select=("data", "amp-loop"),
        ignore=("toys", "zoo"),
        risk=Risk.NUMERIC,
        torch=(2, 4),
        num_workers="4",
        format="changed",
        output_format="json",
        statistics=True,
        jobs=3,
        exclude=("old/",),
        exclude_folder=str(Path.cwd()),
        force_exclude=True,
        per_file_ignores={"tests/**": ("data",)},
        origin="torchfix.toml",
    )


def test_the_command_line_wins_over_the_file() -> None:
    """What is typed replaces what the file says, key by key."""
    settings = from_file({"risk": "exact", "select": ["data"]}, risk="numeric", select=None)

    assert (settings.risk, settings.select) == (Risk.NUMERIC, ("data",))


def test_patterns_count_from_where_they_were_written() -> None:
    """Exclusions of a file count from its folder, those of the command line from the working folder."""
    assert resolve({}, {"exclude": ["a"]}, "/project/torchfix.toml", "/here").exclude_folder == "/project"
    assert resolve({"exclude": ["b"]}, {"exclude": ["a"]}, "/project/torchfix.toml", "/here").exclude_folder == "/here"


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"selct": []}, "torchfix.toml: selct is not a key of torchfix's configuration; nearest: select"),
        ({"zzz": 1}, "torchfix.toml: zzz is not a key of torchfix's configuration; it knows select, ignore, risk"),
        ({"apply": True}, "--apply is given on the command line only"),
        ({"output-file": "x"}, "--output-file is given on the command line only"),
        ({"risk": "exat"}, "torchfix.toml: risk: 'exat' is none of exact, numeric, behavior; nearest: exact"),
        ({"torch": 2.4}, "torch: expected a version such as '2.4', found 2.4"),
        ({"torch": "two"}, "torch: expected a version such as '2.4', found 'two'"),
        ({"num-workers": "4 +"}, "num-workers: '4 \\+' is no Python expression"),
        ({"num-workers": True}, "num-workers: expected a Python expression, found True"),
        *(({"num-workers": text}, "num-workers: .* is no number of workers") for text in ("-1", "4, 5", "'4'", "lambda: 4", "await n()")),
        ({"select": [1]}, "select: expected names, found"),
        ({"jobs": 0}, "jobs: expected a number of processes, 1 or more, found 0"),
        ({"statistics": "yes"}, "statistics: expected true or false, found 'yes'"),
        ({"exclude": 3}, "exclude: expected patterns"),
        ({"per-file-ignores": ["a"]}, "per-file-ignores: expected a table"),
        ({"rules": {"toy-size": 2}}, "rules: expected a table of options for each rule"),
    ],
)
def test_a_wrong_file_is_refused(document: dict[str, Any], words: str) -> None:
    """An unknown key or a value of the wrong kind is an error that names the file, the key and what would be right."""
    with pytest.raises(UsageError, match=words):
        from_file(document)


def test_a_wrong_command_line_is_refused_in_the_same_words() -> None:
    """The command line and the file share their readers, so they refuse alike."""
    with pytest.raises(UsageError, match="--format: 'fil' is none of auto, changed, file, off; nearest: file"):
        resolve({"format": "fil"}, {}, None, "/here")


def test_no_file_at_all(folder: Path) -> None:
    """A folder without configuration gives the defaults."""
    (folder / "pyproject.toml").write_text("[tool.black]\nline-length = 100\n")

    assert load({}, str(folder)).origin is None


def test_the_nearest_file_upward_is_used(folder: Path) -> None:
    """The search goes upward from where the files lie, past a ``pyproject.toml`` that does not speak of torchfix."""
    deep = folder / "src" / "models"
    deep.mkdir(parents=True)
    (folder / "pyproject.toml").write_text("[tool.torchfix]\nrisk = 'exact'\n")
    (folder / "src" / "pyproject.toml").write_text("[project]\nname = 'models'\n")

    settings = load({}, str(deep))

    assert (settings.risk, settings.origin) == (Risk.EXACT, "pyproject.toml")


def test_torchfix_toml_wins_over_pyproject_beside_it(folder: Path) -> None:
    """``torchfix.toml`` holds the same keys without the table name and is looked at first."""
    (folder / "pyproject.toml").write_text("[tool.torchfix]\nrisk = 'exact'\n")
    (folder / "torchfix.toml").write_text("risk = 'numeric'\n")

    assert load({}, str(folder)).risk is Risk.NUMERIC


def test_isolated_reads_no_file(folder: Path) -> None:
    """``--isolated`` passes over every configuration file, a broken one too."""
    (folder / "torchfix.toml").write_text("risk = \n")

    assert load({}, str(folder), isolated=True).origin is None


def test_a_named_file_is_used_instead(folder: Path) -> None:
    """``--config`` names any TOML file; a ``pyproject.toml`` must hold our table."""
    (folder / "torchfix.toml").write_text("risk = 'numeric'\n")
    (folder / "strict.toml").write_text("risk = 'exact'\n")
    (folder / "pyproject.toml").write_text("[tool.black]\n")

    assert load({}, str(folder), config="strict.toml").risk is Risk.EXACT
    with pytest.raises(UsageError, match=r"--config pyproject.toml: there is no \[tool.torchfix\] in it"):
        load({}, str(folder), config="pyproject.toml")


def test_a_named_file_and_isolation_exclude_each_other(folder: Path) -> None:
    """A file cannot be used and passed over at once."""
    with pytest.raises(UsageError, match="--config and --isolated exclude each other"):
        load({}, str(folder), config="x.toml", isolated=True)


@pytest.mark.parametrize("text", ["risk = ", "[tool.torchfix\n", "\xff"])
def test_a_file_that_is_no_toml_is_named(folder: Path, text: str) -> None:
    """A configuration file that cannot be parsed is an error with its name."""
    (folder / "torchfix.toml").write_bytes(text.encode("latin-1"))

    with pytest.raises(UsageError, match="torchfix.toml: not valid TOML"):
        load({}, str(folder))


def test_a_file_that_cannot_be_read_is_named(folder: Path) -> None:
    """A configuration file that cannot be read is an error with its name."""
    (folder / "torchfix.toml").mkdir()

    with pytest.raises(UsageError, match="torchfix.toml: cannot be read: Is a directory"):
        load({}, str(folder))


def test_a_table_that_is_none_is_refused(folder: Path) -> None:
    """``[tool.torchfix]`` must be a table."""
    (folder / "pyproject.toml").write_text("[tool]\ntorchfix = 3\n")

    with pytest.raises(UsageError, match=r"\[tool.torchfix\] must be a table"):
        load({}, str(folder))


def test_black_without_settings() -> None:
    """An empty table still says that the target uses Black."""
    assert black_style({}) == Style(configured=True)


def test_black_with_settings() -> None:
    """What Black reads from its table is taken over; what it would refuse counts as not given."""
    table = {
        "line-length": 100,
        "skip-string-normalization": True,
        "skip-magic-trailing-comma": True,
        "preview": True,
        "target-version": ["py310", "py311"],
    }

    assert black_style(table) == Style(
        line_length=100,
        skip_string_normalization=True,
        skip_magic_trailing_comma=True,
        preview=True,
        target_versions=("py310", "py311"),
        configured=True,
    )
    assert black_style({"line-length": "wide", "target-version": "py39"}) == Style(target_versions=("py39",), configured=True)
    assert black_style({"line-length": True, "target-version": 39, "preview": "yes"}) == Style(configured=True)
    assert black_style({"line-length": 0, "target-version": [["py39"], "py310"]}) == Style(target_versions=("py310",), configured=True)
