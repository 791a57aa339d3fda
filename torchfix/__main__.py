"""The command ``torchfix``: answers ``--version`` before anything is loaded, and hands over to the command line."""

from __future__ import annotations

import signal
import sys

from torchfix.version import VERSION


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code.

    Args:
        arguments: the words behind the command's name; those of this process by default.
    """
    words = sys.argv[1:] if arguments is None else arguments
    try:
        if words == ["--version"]:
            print(f"torchfix {VERSION}", flush=True)
            return 0
        from torchfix.cli import command  # typer costs six bare starts of Python

        return command(words)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except OSError as error:  # of the version, or of the help that typer prints; all other output is looked after where it is written
        sys.stderr.write(f"error: the output cannot be written: {error.strerror}\n")
        return 3
    except Exception:  # the outermost door: Python's own exit code would be 1, "there is a change"
        sys.excepthook(*sys.exc_info())
        sys.stderr.write("error: an internal fault of torchfix; please report it with the lines above\n")
        return 3


if __name__ == "__main__":
    sys.exit(main())
