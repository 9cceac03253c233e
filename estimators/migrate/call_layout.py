"""The arguments of a call in their layout: renamed in place, or laid out anew with their comments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import libcst as cst

_INDENT = "    "


@dataclass(frozen=True, slots=True)
class Item:
    """An argument with the comments around it."""

    arg: cst.Arg
    above: tuple[str, ...] = ()
    """Comments on lines of their own before it."""
    beside: tuple[str, ...] = ()
    """Comments after it on its line."""


_Items = tuple[list[Item], tuple[str, ...]]
"""Arguments with their comments, and the comments after the last."""


def keyword(name: str, value: cst.BaseExpression) -> cst.Arg:
    """Return ``name=value``."""
    tight = cst.AssignEqual(whitespace_before=cst.SimpleWhitespace(""), whitespace_after=cst.SimpleWhitespace(""))
    return cst.Arg(keyword=cst.Name(name), value=value, equal=tight)


def renamed(arg: cst.Arg, name: str) -> cst.Arg:
    """Return an argument under another name in the same layout; a positional one gets the name, too."""
    if arg.keyword is not None:
        return arg.with_changes(keyword=cst.Name(name))
    return keyword(name, arg.value).with_changes(comma=arg.comma, whitespace_after_arg=arg.whitespace_after_arg)


def items(call: cst.Call) -> _Items:
    """Return the arguments of a call with their comments, and the comments after the last."""
    found: list[Item] = []
    above = _comments(call.whitespace_before_args)
    for arg in call.args:
        before_comma = _comments(arg.whitespace_after_arg)
        beside: tuple[str, ...] = ()
        after_comma: tuple[str, ...] = ()
        if isinstance(arg.comma, cst.Comma):
            before_comma += _comments(arg.comma.whitespace_before)
            beside, after_comma = _split(arg.comma.whitespace_after)
        elif before_comma:
            beside, before_comma = _split(arg.whitespace_after_arg)
            after_comma, before_comma = before_comma, ()
        found.append(Item(arg, above, (*before_comma, *beside)))
        above = after_comma
    return found, above


def without(found: Sequence[Item], closing: tuple[str, ...], is_left: Callable[[Item], bool]) -> _Items:
    """Return the items that ``is_left`` does not select; comments of the others move above the next item."""
    kept: list[Item] = []
    comments: tuple[str, ...] = ()
    for item in found:
        if is_left(item):
            comments += (*item.above, *item.beside)
        else:
            kept.append(replace(item, above=(*comments, *item.above)))
            comments = ()
    return kept, (*comments, *closing)


def laid_out(call: cst.Call, found: Sequence[Item], closing: Iterable[str]) -> cst.Call:
    """Return a call with these arguments: on one line if it was on one without comments, else one argument per line."""
    closing = tuple(closing)
    on_one_line = not _has_line_break(call) and not closing and not any(item.above or item.beside for item in found)
    args = [item.arg.with_changes(whitespace_after_arg=cst.SimpleWhitespace("")) for item in found]
    if on_one_line:
        args = [arg.with_changes(comma=cst.MaybeSentinel.DEFAULT) for arg in args]
        return call.with_changes(whitespace_before_args=cst.SimpleWhitespace(""), args=args)
    inside, outside = _indents(call)
    breaks = [_line_break(item.beside, after.above, inside) for item, after in pairwise(found)]
    if found:
        breaks.append(_line_break(found[-1].beside, closing, outside, above_indent=inside))
    first = found[0].above if found else closing
    return call.with_changes(
        whitespace_before_args=_line_break((), first, inside if found else outside, above_indent=inside),
        args=[
            arg.with_changes(comma=cst.Comma(whitespace_after=space)) for arg, space in zip(args, breaks, strict=True)
        ],
    )


def around(found: Sequence[Item], above: tuple[str, ...], beside: tuple[str, ...]) -> list[Item]:
    """Return the items with more comments above the first and beside the last."""
    placed = list(found)
    placed[0] = replace(placed[0], above=(*above, *placed[0].above))
    placed[-1] = replace(placed[-1], beside=(*placed[-1].beside, *beside))
    return placed


def _indents(call: cst.Call) -> tuple[str, str]:
    """Return the indentation, relative to the block, of a call's arguments and of its closing parenthesis."""
    space = call.whitespace_before_args
    if isinstance(space, cst.ParenthesizedWhitespace) and space.indent and space.last_line.value:
        inside = space.last_line.value
        return inside, inside[: -len(_INDENT)] if inside.endswith(_INDENT) else ""
    return _INDENT, ""


def _line_break(
    beside: Sequence[str], above: Sequence[str], indent: str, *, above_indent: str | None = None
) -> cst.ParenthesizedWhitespace:
    space = cst.SimpleWhitespace(indent if above_indent is None else above_indent)
    return cst.ParenthesizedWhitespace(
        first_line=cst.TrailingWhitespace(
            whitespace=cst.SimpleWhitespace("  " if beside else ""),
            comment=cst.Comment("  ".join(beside)) if beside else None,
        ),
        empty_lines=[cst.EmptyLine(indent=True, whitespace=space, comment=cst.Comment(text)) for text in above],
        indent=True,
        last_line=cst.SimpleWhitespace(indent),
    )


def _split(space: cst.BaseParenthesizableWhitespace) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the comment on the first line of a whitespace, and the comments on the lines after it."""
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return (), ()
    first = space.first_line.comment
    rest = tuple(line.comment.value for line in space.empty_lines if line.comment)
    return ((first.value,) if first else ()), rest


def _comments(space: cst.BaseParenthesizableWhitespace) -> tuple[str, ...]:
    first, rest = _split(space)
    return (*first, *rest)


def _has_line_break(call: cst.Call) -> bool:
    commas = [arg.comma.whitespace_after for arg in call.args if isinstance(arg.comma, cst.Comma)]
    ends = [arg.whitespace_after_arg for arg in call.args]
    return any(isinstance(each, cst.ParenthesizedWhitespace) for each in (call.whitespace_before_args, *commas, *ends))
