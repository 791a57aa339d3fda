"""The report of a run: findings, patch or JSON on standard output, the rest on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from torchfix import files
from torchfix.report import diff, json, summary, text
from torchfix.report.screen import Paint, encoded, put_error, put_out
from torchfix.result import Outcome
from torchfix.run import Mode, Run
from torchfix.settings import Settings


def publish(run: Run, mode: Mode, settings: Settings, output_file: str | None = None, filtering: bool = False) -> None:
    """Report what became of all files.

    Args:
        run: the results.
        mode: what was done about the changes.
        settings: the options of the run.
        output_file: where what belongs on standard output goes instead.
        filtering: whether standard input was read, so that its fixed text is what standard output takes.

    Raises:
        FileError: standard output or the output file cannot be written; the rest was said.
    """
    data = _main_output(run, mode, settings, output_file, filtering)
    try:
        if output_file is None:
            put_out(data)
    finally:
        paint = Paint(settings.color, sys.stderr)
        for lines in _told(run, mode, settings, paint, filtering):
            put_error("".join(f"{line}\n" for line in lines))
    if output_file is not None:
        files.write_whole(output_file, data)


def _main_output(run: Run, mode: Mode, settings: Settings, output_file: str | None, filtering: bool) -> bytes:
    if settings.output_format == "json":
        return json.document(run.results)
    if mode is Mode.DIFF:
        return diff.patch(run.results)
    if filtering:
        return run.results[0].after
    paint = Paint("never" if output_file and settings.color == "auto" else settings.color, sys.stdout)
    return encoded(text.findings(run.results, paint, settings.verbose))


def _told(run: Run, mode: Mode, settings: Settings, paint: Paint, filtering: bool) -> Iterator[Iterable[str]]:
    """Groups of lines for standard error."""
    yield summary.warnings(run, paint)
    apart = mode is Mode.DIFF or filtering
    if settings.output_format == "text" and apart and (filtering or settings.verbose):
        yield text.findings(run.results, paint, settings.verbose).splitlines()
    elif settings.output_format == "text" and apart and not settings.quiet:
        yield summary.before_merging(run.results)
    if mode is Mode.DIFF:
        yield summary.out_of_reach(run.results)
    yield summary.failures(run.results, paint, settings.quiet)
    if settings.verbose:
        yield summary.details(run.results)
    if settings.statistics:
        yield summary.statistics(run.results)
    if not settings.quiet:
        yield summary.lines(run, mode)
    yield summary.undo(run)


def exit_code(run: Run, mode: Mode, exit_zero: bool) -> int:
    """3 if some file failed; 1 if there is a change that was only shown; else 0."""
    outcomes = {result.outcome for result in run.results}
    if Outcome.FAILED in outcomes:
        return 3
    return int(Outcome.CHANGED in outcomes and mode is not Mode.APPLY and not exit_zero)
