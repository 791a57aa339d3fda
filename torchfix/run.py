"""Many files: gather them, give each to the engine in this process or in several, have the changes written."""

from __future__ import annotations

import enum
import multiprocessing
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace

from torchfix import files
from torchfix.exclude import Patterns
from torchfix.facts.project.versions import Version
from torchfix.files import FileError, Found
from torchfix.journal import mend
from torchfix.result import Outcome, Reason, Result
from torchfix.settings import Settings
from torchfix.spanning import Answer, Grounds, settle
from torchfix.survey import Job, Members, Survey
from torchfix.usage import UsageError
from torchfix.writing import Undo, write_all

_POOL_BYTES = 1_000_000
"""Below this many bytes to parse, starting processes costs more than they save."""

NEWEST_TORCH: Version = (2, 13)
"""The newest torch whose documentation the rules follow; assumed where a project declares no lower bound."""

STANDARD_INPUT = "-"


class Mode(enum.Enum):
    """What is done about the changes."""

    LIST = "list"
    DIFF = "diff"
    APPLY = "apply"


@dataclass(frozen=True)
class Run:
    """What became of all files, in path order.

    Args:
        results: one for each file.
        torch: the oldest torch that the code was written for, by project; None is the newest known, assumed.
        undo: a patch that takes back what git could not; None if git can, or nothing was written.
        warnings: what of the projects could not be read, and what holds instead; what was done about killed runs.
    """

    results: tuple[Result, ...]
    torch: frozenset[Version | None] = frozenset()
    undo: Undo | None = None
    warnings: tuple[str, ...] = ()


def run(paths: Sequence[str], mode: Mode, settings: Settings, stdin_filename: str | None = None) -> Run:
    """Do what a command line asks for.

    Args:
        paths: files and folders, or ``-`` alone for standard input.
        mode: whether files are written.
        settings: the options.
        stdin_filename: the name under which standard input is judged.

    Raises:
        UsageError: a path does not exist, a rule is unknown, an option of a rule is wrong, or files to be written have
            uncommitted changes.
    """
    survey = Survey(settings)
    if STANDARD_INPUT in paths:
        if len(paths) > 1:
            raise UsageError("- (standard input) cannot be mixed with other paths")
        return _run(survey, [_filter(files.read_standard_input(), survey, settings, stdin_filename)])
    walked = files.walk(paths, Patterns(settings.exclude_folder, settings.exclude), settings.force_exclude)
    found = [entry for entry in walked if isinstance(entry, Found)]
    if mode is Mode.APPLY:
        return _applied(walked, found, survey, settings)
    return _run(survey, _results(walked, found, survey, settings))


def _applied(walked: Sequence[Found | Result], found: Sequence[Found], survey: Survey, settings: Settings) -> Run:
    """Mend what killed runs left, then change what there is to change."""
    mended = tuple(mend(survey.folders(found)))
    try:
        written = write_all(
            _results(walked, found, survey, settings), {entry.path: entry.real for entry in found}, settings.allow_dirty
        )
    except UsageError as error:
        raise UsageError("\n".join([*mended, str(error)])) from error
    done = _run(survey, written.results)
    return replace(done, undo=written.undo, warnings=(*mended, *done.warnings))


def _results(walked: Sequence[Found | Result], found: Sequence[Found], survey: Survey, settings: Settings) -> list[Result]:
    """What becomes of every file of a walk, in its order."""
    done = {result.path: result for result in _fix_all(found, survey, settings.jobs or _cores())}
    return [entry if isinstance(entry, Result) else done[entry.path] for entry in walked]


def _filter(data: bytes, survey: Survey, settings: Settings, name: str | None) -> Result:
    """What becomes of standard input, which may have a file's name."""
    entry = Found(files.shown(name) if name else "<stdin>", os.path.realpath(name or "stdin.py"))
    if name and settings.force_exclude and files.is_excluded(name, Patterns(settings.exclude_folder, settings.exclude)):
        return Result(entry.path, Outcome.CLEAN, data, data)
    return survey.job(entry).fix(data)


def _run(survey: Survey, results: Sequence[Result]) -> Run:
    return Run(tuple(results), survey.torch, warnings=survey.warnings)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _fix_all(found: Sequence[Found], survey: Survey, processes: int) -> list[Result]:
    """The results of all files, in any order."""
    answers: dict[str, Answer] = {}
    left: list[_Sized] = []
    for entry in found:
        try:
            data = files.read(entry.real)
        except FileError as error:
            answers[entry.path] = Result(entry.path, Outcome.FAILED, reason=error.reason)
            continue
        if survey.concerns(data):
            left.append(_Sized(survey.job(entry), len(data)))
        else:
            answers[entry.path] = Result(entry.path, Outcome.CLEAN, data, data)
    answers |= _advance_all(left, processes)
    roots = {sized.job.context.project.root for sized in left if not isinstance(answers[sized.job.path], Result)}
    for members in (survey.members(root, found) for root in sorted(roots)):
        answers |= _settled(members, answers, processes)
    return [answer for answer in answers.values() if isinstance(answer, Result)]


def _settled(members: Members, answers: Mapping[str, Answer], processes: int) -> dict[str, Result]:
    """The results of one project's files, once no finding that spans several of them is new."""

    def advance(names: Sequence[str], grounds: Grounds) -> Mapping[str, Answer]:
        jobs = members.on(grounds, names)
        found = _advance_all([_Sized(job, files.size(job.real)) for job in jobs], processes)
        return {name: found[job.path] for name, job in zip(names, jobs)}

    known = {name: answers[job.path] for name, job in members.jobs.items()}
    return {result.path: result for result in settle(known, members.grounds, advance).values()}


@dataclass(frozen=True)
class _Sized:
    """A file to look at, and how many bytes it holds."""

    job: Job
    size: int


def _advance_all(left: Sequence[_Sized], processes: int) -> dict[str, Answer]:
    """The answers of some files by path, from this process or from several where that pays."""
    jobs = [sized.job for sized in sorted(left, key=lambda sized: -sized.size)]  # the largest first, so that none is left over at the end
    if processes == 1 or len(left) == 1 or sum(sized.size for sized in left) < _POOL_BYTES:
        return {job.path: answer for job, answer in zip(jobs, _advance_some(jobs))}
    return _advance_in_processes(jobs, min(processes, len(jobs)))


def _advance_some(jobs: Sequence[Job]) -> list[Answer]:
    answers: list[Answer] = []
    for job in jobs:
        try:
            answers.append(job.advance(files.read(job.real)))
        except FileError as error:
            answers.append(Result(job.path, Outcome.FAILED, reason=error.reason))
    return answers


def _advance_in_processes(jobs: Sequence[Job], processes: int) -> dict[str, Answer]:
    """As :func:`_advance_some`, by path; a file that kills the process that reads it fails alone."""
    share = 4 * processes
    chunks = [jobs[start::share] for start in range(min(share, len(jobs)))]
    answers: dict[str, Answer] = {}
    unfinished: list[Job] = []
    with ProcessPoolExecutor(processes, initializer=_end_with_the_run) as pool:
        try:
            for chunk, future in [(chunk, pool.submit(_advance_some, chunk)) for chunk in chunks]:
                try:
                    answers |= {job.path: answer for job, answer in zip(chunk, future.result())}
                except BrokenProcessPool:
                    unfinished += chunk
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    return answers | {job.path: _advance_apart(job) for job in unfinished}


def _end_with_the_run() -> None:
    """Have a process of the pool end at an interrupt without a word, and when the run itself was killed."""
    run = multiprocessing.parent_process()
    assert run is not None
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    def follow() -> None:
        run.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _advance_apart(job: Job) -> Answer:
    with ProcessPoolExecutor(1, initializer=_end_with_the_run) as pool:
        try:
            return pool.submit(_advance_some, [job]).result()[0]
        except BrokenProcessPool:
            reason = Reason("killed", "the process that read it was killed", "look at its size and at the memory that is left")
            return Result(job.path, Outcome.FAILED, reason=reason)
