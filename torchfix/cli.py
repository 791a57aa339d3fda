"""The command line: what may be typed, and what it calls. No logic."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from torchfix import files
from torchfix.files import FileError
from torchfix.settings import COLORS, FORMATS, OUTPUT_FORMATS, RISKS, load
from torchfix.usage import UsageError
from torchfix.version import VERSION

# What a run needs is imported by the commands below: --help shall not wait for it.

_EPILOG = (
    "Exit codes: 0 nothing to change, or all of it was written; 1 there is a change that was only shown; 2 wrong usage or "
    "configuration; 3 some file failed. 'torchfix rules [NAME]' lists the rules or explains one; a path of that name is "
    "written ./rules."
)


def _app() -> typer.Typer:
    """A command without colours of its own: rich would cost as much as the whole run, and wrap what scripts read."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


_fix_app, _rules_app = _app(), _app()


def command(words: Sequence[str]) -> int:
    """Run the command with some words behind its name and give its exit code."""
    name, app, rest = ("torchfix rules", _rules_app, words[1:]) if words[:1] == ["rules"] else ("torchfix", _fix_app, words)
    files.open_closed_outputs()
    try:
        files.check_working_folder()
        app(args=list(rest), prog_name=name)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except (UsageError, FileError) as error:
        from torchfix.report.screen import put_fault

        put_fault(str(error))
        return 2 if isinstance(error, UsageError) else 3
    return 0


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"torchfix {VERSION}")
        raise typer.Exit


def _words(known: Sequence[str]) -> str:
    return "|".join(known)


@_fix_app.command(epilog=_EPILOG)
def _fix(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PATHS]...", help="Files, folders, or - for standard input.  [default: .]", show_default=False),
    ] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Print the change as one unified diff, write nothing.")] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Write the change.")] = False,
    select: Annotated[list[str] | None, typer.Option(metavar="RULE,...", help="Rules or groups to run; also turns on what is off.")] = None,
    ignore: Annotated[list[str] | None, typer.Option(metavar="RULE,...", help="Rules or groups not to run.")] = None,
    risk: Annotated[str | None, typer.Option(metavar=_words(RISKS), help="Highest risk that may be changed.  [default: behavior]")] = None,
    torch: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="Oldest torch the code must run on.  [default: the project's declared lower bound]"),
    ] = None,
    num_workers: Annotated[str | None, typer.Option(metavar="EXPR", help="Expression for the number of loader workers.")] = None,
    format: Annotated[str | None, typer.Option(metavar=_words(FORMATS), help="How Black is used.  [default: auto]")] = None,
    output_format: Annotated[str | None, typer.Option(metavar=_words(OUTPUT_FORMATS), help="What is printed.  [default: text]")] = None,
    output_file: Annotated[str | None, typer.Option(metavar="FILE", help="Write there what belongs on standard output.")] = None,
    statistics: Annotated[bool | None, typer.Option("--statistics", help="Count findings by rule.")] = None,
    quiet: Annotated[bool | None, typer.Option("--quiet", "-q", help="No summary.")] = None,
    verbose: Annotated[
        bool | None,
        typer.Option("--verbose", "-v", help="Also suppressed findings, unused suppressions, clean files; with --diff the findings."),
    ] = None,
    color: Annotated[str | None, typer.Option(metavar=_words(COLORS), help="When to use colours.  [default: auto]")] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", metavar="N", help="Processes.  [default: one a core, where it pays]")] = None,
    config: Annotated[str | None, typer.Option(metavar="FILE", help="Configuration file to use.")] = None,
    isolated: Annotated[bool, typer.Option("--isolated", help="Use no configuration file.")] = False,
    exclude: Annotated[list[str] | None, typer.Option(metavar="GLOB", help="Files to leave out, as in a .gitignore.")] = None,
    force_exclude: Annotated[bool | None, typer.Option("--force-exclude", help="Leave out files named here too.")] = None,
    stdin_filename: Annotated[str | None, typer.Option(metavar="NAME", help="Name of what standard input holds.")] = None,
    allow_dirty: Annotated[bool | None, typer.Option("--allow-dirty", help="Write files with uncommitted changes too.")] = None,
    exit_zero: Annotated[bool | None, typer.Option("--exit-zero", help="Exit with 0 where it would be 1.")] = None,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Find slow patterns in PyTorch training code and rewrite them into fast ones.

    Lists what it finds; --diff shows the change, --apply writes it.
    """
    from torchfix import report
    from torchfix.run import STANDARD_INPUT, Mode, run

    if diff and apply:
        raise UsageError("--diff and --apply exclude each other")
    mode = Mode.DIFF if diff else Mode.APPLY if apply else Mode.LIST
    asked = {
        "select": select,
        "ignore": ignore,
        "risk": risk,
        "torch": torch,
        "num_workers": num_workers,
        "format": format,
        "output_format": output_format,
        "statistics": statistics,
        "quiet": quiet,
        "verbose": verbose,
        "color": color,
        "jobs": jobs,
        "exclude": exclude,
        "force_exclude": force_exclude,
        "allow_dirty": allow_dirty,
        "exit_zero": exit_zero,
    }
    if output_file is not None:
        files.check_output(output_file)
    filtering = paths == [STANDARD_INPUT]
    start = files.common_folder([stdin_filename or "."] if filtering else paths or ["."])
    settings = load(asked, start, config, isolated)
    done = run(paths or ["."], mode, settings, stdin_filename)
    report.publish(done, mode, settings, output_file, filtering)
    raise typer.Exit(report.exit_code(done, mode, settings.exit_zero))


@_rules_app.command()
def _rules(
    name: Annotated[str | None, typer.Argument(help="The rule to explain.", show_default=False)] = None,
    output_format: Annotated[str | None, typer.Option(metavar="text|json", help="What is printed.  [default: text]")] = None,
    color: Annotated[str | None, typer.Option(metavar=_words(COLORS), help="When to use colours.  [default: auto]")] = None,
) -> None:
    """List the rules, or explain one: why, before and after, safety, reference."""
    from torchfix import registry
    from torchfix.report import rules as about_rules
    from torchfix.report.screen import Paint, encoded, put_out

    chosen = registry.discover() if name is None else (registry.find(name),)
    settings = load({"output_format": output_format, "color": color}, ".", isolated=True)
    paint = Paint(settings.color, sys.stdout)
    if settings.output_format == "json":
        put_out(about_rules.document(chosen))
    elif name is None:
        put_out(encoded(about_rules.listing(chosen, paint)))
    else:
        put_out(encoded(about_rules.explanation(chosen[0], paint)))
