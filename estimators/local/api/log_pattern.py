"""CloudWatch Logs' filter patterns of plain terms: words and quoted phrases that must occur, or must not.

Patterns of JSON (``{ $.a = 1 }``), columns (``[a, b]``) and regular expressions (``%a%``) are refused, because moto
would let them match everything.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/FilterAndPatternSyntax.html
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from estimators.local.engine import ApiError

_TERM = re.compile(r'\s*(?P<sign>[?-]?)(?:"(?P<phrase>(?:[^"\\]|\\.)*)"|(?P<word>\w+))(?=\s|$)\s*', re.DOTALL)
"""A word consists of letters, digits and underscores; AWS wants any other text in quotes."""
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


@dataclass(kw_only=True, slots=True, frozen=True)
class LogPattern:
    """The messages that a FilterLogEvents asks for. Case matters."""

    required: tuple[str, ...] = ()
    """All of these terms must occur."""
    alternatives: tuple[str, ...] = ()
    """One of these terms must occur, if there are any."""
    excluded: tuple[str, ...] = ()
    """None of these terms may occur."""

    @classmethod
    def parse(cls, text: object) -> LogPattern:
        """Parse a request's ``filterPattern``; an empty one matches all.

        Raise ApiError if it is malformed or of an unsupported kind.
        """
        if not isinstance(text, str):
            raise ApiError("InvalidParameterException", f"filterPattern={text!r} must be a text.")
        terms: dict[str, list[str]] = {"": [], "?": [], "-": []}
        at = 0
        while text[at:].strip():
            found = _TERM.match(text, at)
            if found is None:
                raise _invalid(text, f"{text[at:].strip()!r} is no such term")
            phrase = found["phrase"]
            terms[found["sign"]].append(found["word"] if phrase is None else _ESCAPED.sub(r"\1", phrase))
            at = found.end()
        if terms["?"] and (terms[""] or terms["-"]):
            raise _invalid(text, "beside other terms, AWS ignores those with '?'")
        return cls(required=tuple(terms[""]), alternatives=tuple(terms["?"]), excluded=tuple(terms["-"]))

    def matches(self, message: str) -> bool:
        """Return whether a message matches."""
        return (
            all(term in message for term in self.required)
            and (not self.alternatives or any(term in message for term in self.alternatives))
            and not any(term in message for term in self.excluded)
        )


def _invalid(text: str, why: str) -> ApiError:
    return ApiError(
        "InvalidParameterException",
        f'Invalid filter pattern {text!r}: {why}. The local platform takes words and "quoted phrases", all of which '
        "must occur, those with '-' that must not, or those with '?' alone, one of which must; no JSON, columns or "
        "regular expressions.",
    )
