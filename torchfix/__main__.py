"""The command ``torchfix``: answers ``--version`` before anything is loaded, and hands over to the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from torchfix.version import VERSION


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Args:
        arguments: the words behind the command's name; those of this process by default.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["--version"]:
        sys.stdout.write(f"torchfix {VERSION}\n")
        return 0
    from torchfix.cli import command  # typer costs six bare starts of Python

    return command(words)


if __name__ == "__main__":
    sys.exit(main())
