"""Which files and folders a walk leaves out."""

from __future__ import annotations

import pytest

from torchfix.exclude import Exclusion, Patterns, inside


def exclusion(files: dict[str, str] | None = None, patterns: tuple[str, ...] = ()) -> Exclusion:
    texts = {path: text.encode() for path, text in (files or {}).items()}
    return Exclusion("/tree", Patterns("/tree", patterns), texts.get)


def test_ordinary_entries_stay() -> None:
    """Files and folders that nothing speaks of are walked."""
    nothing = exclusion()

    assert not nothing.leaves_out("/tree", "models", True)
    assert not nothing.leaves_out("/tree/models", "net.py", False)
    assert not nothing.leaves_out("/tree", "build.py", False)
    assert not nothing.leaves_out("/tree", ".hidden.py", False)


@pytest.mark.parametrize("name", [".git", ".venv", ".tox", "build", "dist", "node_modules", "__pycache__", "site-packages"])
def test_folders_that_hold_no_source(name: str) -> None:
    """Hidden folders and those of tools are left out at any depth."""
    assert exclusion().leaves_out("/tree/deep", name, True)


def test_a_virtual_environment_of_any_name() -> None:
    """A folder with ``pyvenv.cfg`` is a virtual environment whatever it is called."""
    assert exclusion({"/tree/env/pyvenv.cfg": ""}).leaves_out("/tree", "env", True)


def test_ignored_files() -> None:
    """A ``.gitignore`` holds for its folder and those below."""
    ignoring = exclusion({"/tree/.gitignore": "old_*.py\nruns/\n/top.py\n"})

    assert ignoring.leaves_out("/tree/deep", "old_net.py", False)
    assert ignoring.leaves_out("/tree/deep", "runs", True)
    assert not ignoring.leaves_out("/tree/deep", "runs", False)
    assert ignoring.leaves_out("/tree", "top.py", False)
    assert not ignoring.leaves_out("/tree/deep", "top.py", False)


def test_a_nested_file_has_the_last_word() -> None:
    """The nearest ``.gitignore`` that speaks of a file decides, also to let it in again."""
    ignoring = exclusion({"/tree/.gitignore": "*_pb2.py\n", "/tree/keep/.gitignore": "!net_pb2.py\n"})

    assert ignoring.leaves_out("/tree", "net_pb2.py", False)
    assert not ignoring.leaves_out("/tree/keep", "net_pb2.py", False)
    assert ignoring.leaves_out("/tree/keep", "other_pb2.py", False)


def test_a_file_above_the_top_is_not_heard() -> None:
    """What lies above the work tree says nothing about it."""
    assert not exclusion({"/.gitignore": "*"}).leaves_out("/tree", "net.py", False)


def test_lines_that_are_no_patterns_are_passed_over() -> None:
    """A line that git would not understand costs only itself."""
    ignoring = exclusion({"/tree/.gitignore": "!\n\\\nold.py\n"})

    assert ignoring.leaves_out("/tree", "old.py", False)
    assert not ignoring.leaves_out("/tree", "new.py", False)


def test_the_users_own_patterns() -> None:
    """``--exclude`` speaks the language of ``.gitignore`` and wins over it."""
    excluding = exclusion({"/tree/.gitignore": "!gen.py\n"}, ("gen.py", "legacy/**"))

    assert excluding.leaves_out("/tree/a", "gen.py", False)
    assert excluding.leaves_out("/tree/legacy", "net.py", False)
    assert not excluding.leaves_out("/tree/a", "net.py", False)


def test_patterns_say_nothing_of_what_lies_elsewhere() -> None:
    """A pattern counts from its folder and knows no other."""
    assert Patterns("/tree", ("*.py",)).says("/other/a.py") is None
    assert Patterns("/tree", ()).says("/tree/a.py") is None


def test_inside_is_a_question_of_whole_names() -> None:
    """A folder whose name merely begins alike does not hold the path; the root holds everything."""
    assert inside("/a/b", "/a")
    assert inside("/a", "/a")
    assert inside("/a", "/")
    assert not inside("/ab", "/a")
