"""The screen: what goes to standard output and standard error, and when it is coloured."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

from torchfix import files
from torchfix.files import FileError

_CODES = {"bold": "1", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def put_out(data: bytes) -> None:
    """Bytes to standard output as they are; a reader that has gone away is no error.

    Raises:
        FileError: they cannot be written.
    """
    files.put(sys.stdout, data)


def put_error(text: str) -> None:
    """Text to standard error as UTF-8, whatever the locale says; where it cannot be written there is nobody to tell."""
    with contextlib.suppress(FileError):
        files.put(sys.stderr, encoded(text))


def put_fault(words: str) -> None:
    """Why the command ends without a report."""
    put_error("".join(f"{printable(line)}\n" for line in f"error: {words}".split("\n")))


def encoded(text: str) -> bytes:
    """Text as it leaves the program: UTF-8, with file names that are none as the bytes that they are."""
    return text.encode("utf-8", "surrogateescape")


class Paint:
    """Colours for one stream.

    Args:
        wanted: ``auto`` (a terminal, with respect for ``NO_COLOR`` and ``FORCE_COLOR``), ``always`` or ``never``.
        stream: where the text will go.
    """

    def __init__(self, wanted: str, stream: TextIO) -> None:
        self.on = wanted == "always" or (wanted == "auto" and _asks_for_colour(stream))

    def __call__(self, style: str, text: str) -> str:
        """The text in one of the known styles, or as it is."""
        return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if self.on and text else text

    def python(self, code: str) -> str:
        """Python code, highlighted."""
        if not self.on:
            return code
        from io import StringIO

        from rich.console import Console  # as dear as four bare starts of Python
        from rich.syntax import Syntax

        console = Console(file=StringIO(), force_terminal=True, width=max(map(len, code.splitlines()), default=0) + 1)
        with console.capture() as capture:
            console.print(Syntax(code.rstrip("\n"), "python", theme="ansi_dark", background_color="default"))
        return "".join(line.rstrip() + "\n" for line in capture.get().splitlines())


def _asks_for_colour(stream: TextIO) -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def printable(text: str) -> str:
    """Text of the user's files on a screen: control characters are spelled out, so that none acts on the terminal."""
    return "".join(letter if letter.isprintable() or "\udc80" <= letter <= "\udcff" else repr(letter)[1:-1] for letter in text)
