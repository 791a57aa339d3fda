"""Segments of a text through LibCST: a call, a function's header, or new statements, each given alone.

LibCST keeps every comment and space of what it is given; the rest of a file it never sees. This module imports it,
and LibCST is slow to import, so it is itself imported only where something is really edited.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

import libcst as cst

_LINE_END = re.compile(r"\r\n|\r|\n")
_STEP = "    "

Space: TypeAlias = cst.BaseParenthesizableWhitespace
N = TypeVar("N", bound=cst.CSTNode)
Item = TypeVar("Item", cst.Arg, cst.Param)


class UnfaithfulError(Exception):
    """LibCST did not give back the text that it was given, so it cannot be trusted with it."""


def set_argument(call: str, name: str, value: str, newline: str) -> str:
    """The text of a call with a keyword argument: in the place of the one it has, or in the manner of its others.

    Args:
        call: the text.
        name, value: the argument.
        newline: the line end for a value over several lines, where the call has none of its own.

    Raises:
        UnfaithfulError: LibCST does not reproduce the text.
    """
    return _changed_call(call, lambda node: _with_argument(node, name, _expression(value)), newline)


def remove_argument(call: str, argument: str | int) -> str:
    """The text of a call without an argument, named by keyword or position; its comment stays, on a line of its own.

    Raises:
        UnfaithfulError: LibCST does not reproduce the text.
    """
    return _changed_call(call, lambda node: _without_argument(node, argument))


def add_parameter(header: str, parameter: str) -> str:
    """The text of a function's header, up to its colon, with one more parameter behind those that have a position.

    Raises:
        UnfaithfulError: LibCST does not reproduce the text.
    """
    new = _function(f"def f({parameter}): pass").params.params[0]
    whole = _through_libcst(f"{header} pass\n", _function, lambda node: _with_parameter(node, new))
    return whole[: whole.rindex(" pass")]


def lay_out(code: str, indent: str, newline: str) -> str:
    """Statements, written with four blanks and line feeds, in another step of indentation and with other line ends."""
    module = cst.parse_module(code.rstrip() + "\n")
    return module.with_changes(default_indent=indent, default_newline="\n").code.replace("\n", newline)


def _changed_call(text: str, change: Callable[[cst.Call], cst.Call], newline: str = "\n") -> str:
    return _through_libcst(f"({text})", lambda words: cst.ensure_type(cst.parse_expression(words), cst.Call), change, newline)[1:-1]


def _function(text: str) -> cst.FunctionDef:
    statement = cst.parse_statement(text)
    assert isinstance(statement, cst.FunctionDef)
    return statement


def _expression(text: str) -> cst.BaseExpression:
    """An expression, in parentheses where a line break in it needs them."""
    try:
        return cst.parse_expression(text)
    except cst.ParserSyntaxError:
        return cst.parse_expression(f"({text})")


def _through_libcst(text: str, parse: Callable[[str], N], change: Callable[[N], N], newline: str = "\n") -> str:
    """Text parsed, changed and written again."""
    own = _LINE_END.search(text)
    module = cst.Module([], default_newline=own[0] if own else newline)
    node = parse(text)
    if module.code_for_node(node) != text:
        raise UnfaithfulError(f"LibCST does not reproduce {text!r}")
    return module.code_for_node(change(node))


def _without_argument(call: cst.Call, argument: str | int) -> cst.Call:
    args = list(call.args)
    if isinstance(argument, int):
        index = [index for index, arg in enumerate(args) if arg.keyword is None and arg.star != "**"][argument]
    else:
        index = next(index for index, arg in enumerate(args) if arg.keyword is not None and arg.keyword.value == argument)
    gone = args.pop(index)
    last = index == len(args)
    comma = gone.comma if isinstance(gone.comma, cst.Comma) else None
    behind = comma.whitespace_after if comma else gone.whitespace_after_arg
    if index == 0:
        return call.with_changes(args=args, whitespace_before_args=_merged(call.whitespace_before_args, behind, closing=last))
    previous = args[index - 1]
    between = cst.ensure_type(previous.comma, cst.Comma)
    gap = _merged(between.whitespace_after, behind, closing=last)
    if last and comma is None:
        args[index - 1] = previous.with_changes(comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=gap)
    else:
        args[index - 1] = previous.with_changes(comma=between.with_changes(whitespace_after=gap))
    return call.with_changes(args=args)


def _with_argument(call: cst.Call, name: str, value: cst.BaseExpression) -> cst.Call:
    args = list(call.args)
    for index, arg in enumerate(args):
        if arg.keyword is not None and arg.keyword.value == name:
            args[index] = arg.with_changes(value=value)
            return call.with_changes(args=args)
    if len(args) == 1 and isinstance(args[0].value, cst.GeneratorExp) and not args[0].value.lpar:
        args[0] = args[0].with_changes(value=args[0].value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()]))
    new = cst.Arg(value, cst.Name(name), equal=_equal_sign(args))
    opening = call.whitespace_before_args
    if not args and isinstance(opening, cst.ParenthesizedWhitespace):
        deeper = opening.with_changes(last_line=cst.SimpleWhitespace(opening.last_line.value + _STEP))
        return call.with_changes(args=[new.with_changes(whitespace_after_arg=_bare(opening))], whitespace_before_args=deeper)
    end = len(args)
    while end and args[end - 1].star == "**":
        end -= 1
    joined = _appended(args[:end], new, opening, "whitespace_after_arg", followed=end < len(args))
    return call.with_changes(args=[*joined, *args[end:]])


def _equal_sign(args: Sequence[cst.Arg]) -> cst.AssignEqual:
    """The equal sign that a call's keywords have: spaces on both sides only where all others have them."""
    signs = [arg.equal for arg in args if isinstance(arg.equal, cst.AssignEqual)]
    spaced = bool(signs) and all(_width(sign.whitespace_before) and _width(sign.whitespace_after) for sign in signs)
    space = cst.SimpleWhitespace(" " if spaced else "")
    return cst.AssignEqual(space, space)


def _width(space: Space) -> int:
    return len(space.value) if isinstance(space, cst.SimpleWhitespace) else 0


def _with_parameter(function: cst.FunctionDef, new: cst.Param) -> cst.FunctionDef:
    """A function with one more parameter behind the last that may be passed by position."""
    params = function.params
    followed = isinstance(params.star_arg, (cst.Param, cst.ParamStar)) or params.star_kwarg is not None
    opening = function.whitespace_before_params
    slash = params.posonly_ind
    if not params.params and isinstance(slash, cst.ParamSlash):
        # behind "/" only a comma is missing; the parameter takes the place that the next one would have had
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        new = new.with_changes(comma=comma if followed else cst.MaybeSentinel.DEFAULT)
        return function.with_changes(params=params.with_changes(params=[new], posonly_ind=slash.with_changes(comma=comma)))
    joined = _appended(params.params, new, opening, "whitespace_after_param", followed)
    return function.with_changes(params=params.with_changes(params=joined))


def _appended(items: Sequence[Item], new: Item, opening: Space, gap: str, followed: bool) -> list[Item]:
    """Arguments or parameters with one more behind them, which takes over their commas and line breaks but no comment.

    Args:
        items: those that it stands behind.
        opening: the white space behind the opening bracket.
        gap: the name of the field for the white space behind an item that has no comma.
        followed: whether something stands behind it.
    """
    separator = _separator(items, opening, followed)
    if not items:
        comma = cst.Comma(whitespace_after=separator) if followed else cst.MaybeSentinel.DEFAULT
        return [new.with_changes(comma=comma)]
    *others, last = items
    closing = last.comma.whitespace_after if isinstance(last.comma, cst.Comma) else getattr(last, gap)
    before = _opened(closing, separator)
    if isinstance(last.comma, cst.Comma):
        last = last.with_changes(comma=last.comma.with_changes(whitespace_after=before))
        return [*others, last, new.with_changes(comma=cst.Comma(whitespace_after=_bare(closing)))]
    last = last.with_changes(**{"comma": cst.Comma(whitespace_after=before), gap: cst.SimpleWhitespace("")})
    return [*others, last, new.with_changes(**{gap: _bare(closing)})]


def _separator(items: Sequence[cst.Arg] | Sequence[cst.Param], opening: Space, followed: bool) -> Space:
    """The white space behind a comma between two items: a line break where there is one already, else as they have it."""
    commas = [item.comma for item in (items if followed else items[:-1])]
    gaps = [comma.whitespace_after for comma in commas if isinstance(comma, cst.Comma)]
    breaks = [gap for gap in gaps if isinstance(gap, cst.ParenthesizedWhitespace)]
    if breaks:
        return _bare(breaks[-1])
    if len(items) < 2 and isinstance(opening, cst.ParenthesizedWhitespace):
        return _bare(opening)
    return gaps[-1] if gaps else cst.SimpleWhitespace(" ")


def _bare(space: Space) -> Space:
    """The same white space without comments and empty lines."""
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return space
    first = space.first_line.with_changes(whitespace=cst.SimpleWhitespace(""), comment=None)
    return space.with_changes(first_line=first, empty_lines=[])


def _opened(closing: Space, separator: Space) -> Space:
    """White space that stood in front of a closing bracket, now in front of one more item; comments keep their lines."""
    if not isinstance(closing, cst.ParenthesizedWhitespace) or not _comments(closing):
        return separator
    if isinstance(separator, cst.ParenthesizedWhitespace):
        return closing.with_changes(last_line=separator.last_line)
    return closing.with_changes(last_line=cst.SimpleWhitespace(closing.last_line.value + _STEP))


def _merged(before: Space, behind: Space, closing: bool) -> Space:
    """The white space where an argument was, from that in front of it and that behind it; comments stay."""
    if isinstance(behind, cst.ParenthesizedWhitespace) and _comments(behind):
        if not isinstance(before, cst.ParenthesizedWhitespace):
            return behind
        comment = behind.first_line.comment
        own = [cst.EmptyLine(whitespace=before.last_line, comment=comment)] if comment else []
        return before.with_changes(empty_lines=[*before.empty_lines, *own, *behind.empty_lines], last_line=behind.last_line)
    if isinstance(before, cst.ParenthesizedWhitespace) and _comments(before):
        last = behind.last_line if isinstance(behind, cst.ParenthesizedWhitespace) else before.last_line
        return before.with_changes(last_line=last)
    return behind if closing else before


def _comments(space: cst.ParenthesizedWhitespace) -> bool:
    return space.first_line.comment is not None or any(line.comment is not None for line in space.empty_lines)
