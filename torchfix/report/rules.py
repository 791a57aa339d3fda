"""What there is to say of the rules themselves."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, fields
from itertools import groupby
from typing import Any

from torchfix.report.screen import Paint
from torchfix.transform import Default, Transform

_DEFAULTS = {Default.ON: "", Default.OFF: "off", Default.ADVICE: "advice"}


def listing(transforms: Sequence[Transform], paint: Paint) -> str:
    """All rules by group, a line each."""
    width = max((len(transform.name) for transform in transforms), default=0)
    lines = []
    for group, members in groupby(transforms, key=lambda transform: transform.group):
        lines.append(paint("bold", group))
        for transform in members:
            summary = " ".join(transform.summary.split())
            lines.append(
                f"  {paint('cyan', transform.name)}{'':{width - len(transform.name)}}  {_DEFAULTS[transform.default]:6}  {summary}".rstrip()
            )
    return "".join(f"{line}\n" for line in lines)


def explanation(transform: Transform, paint: Paint) -> str:
    """One rule's own words: why, before and after, safety, options, reference."""
    default = {Default.ON: "on", Default.OFF: "off unless selected", Default.ADVICE: "advice only"}[transform.default]
    title = f"{paint('cyan', transform.name)} ({transform.group}; {default}; writes code for torch {transform.since} and newer)"
    sections = [
        ("Why", transform.why),
        ("Before", paint.python(transform.before)),
        ("After", paint.python(transform.after)),
        ("Safety", transform.safety),
        ("Options", "\n".join(f"{name} = {default!r}" for name, default in _options(transform))),
        ("Reference", transform.reference),
    ]
    told = [f"{paint('bold', heading)}\n{textwrap.indent(body.rstrip(), '    ')}\n" for heading, body in sections if body.strip()]
    return "\n".join([f"{title}\n", f"{transform.summary}\n", *told])


def document(transforms: Iterable[Transform]) -> bytes:
    """Rules as JSON: a list of all that a rule says of itself."""
    return json.dumps([_rule(transform) for transform in transforms], indent=2).encode("ascii") + b"\n"


def _rule(transform: Transform) -> dict[str, Any]:
    return {
        "name": transform.name,
        "group": transform.group,
        "default": transform.default.value,
        "since": transform.since,
        "options": dict(_options(transform)),
        "summary": transform.summary,
        "why": transform.why,
        "before": transform.before,
        "after": transform.after,
        "safety": transform.safety,
        "reference": transform.reference,
    }


def _options(transform: Transform) -> Iterator[tuple[str, Any]]:
    """The keys of a rule's options with their defaults."""
    for option in fields(transform.options):
        yield option.name.replace("_", "-"), None if option.default is MISSING else option.default
