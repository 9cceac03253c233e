"""CloudWatch Logs' filter patterns, of plain terms: words and quoted phrases that must occur, or must not.

Not here: patterns of JSON (``{ $.a = 1 }``), columns (``[a, b]``) and regular expressions (``%a%``). They are refused:
moto takes what it does not understand for "everything".

https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/FilterAndPatternSyntax.html
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from estimators.local.engine import ApiError

_TERM = re.compile(r'\s*(?P<sign>[?-]?)(?:"(?P<phrase>(?:[^"\\]|\\.)*)"|(?P<word>\w+))(?=\s|$)\s*', re.DOTALL)
"""A word has letters, digits and underscores; anything else stands in quotes, as AWS wants it."""
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


@dataclass(kw_only=True, slots=True, frozen=True)
class LogPattern:
    """Which messages a FilterLogEvents is for. Upper and lower case differ."""

    required: tuple[str, ...] = ()
    """All of these occur."""
    alternatives: tuple[str, ...] = ()
    """One of these occurs, if there are any."""
    excluded: tuple[str, ...] = ()
    """None of these occurs."""

    @classmethod
    def parse(cls, text: object) -> LogPattern:
        """Read a request's ``filterPattern``; what is left empty matches everything.

        Raises:
            ApiError: It is no pattern, or of a kind that the local platform does not know.
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
        """Return whether a message is wanted."""
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
