"""What a page shows in place of what looks like a secret: a job's hyperparameters and variables may hold one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

MASK = "••••••"

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET = frozenset(
    {"token", "secret", "secrets", "password", "passwd", "passphrase", "credential", "credentials", "apikey", "pat"}
)
_KEYS = frozenset((kind, "key") for kind in ("api", "access", "private", "auth", "account", "result"))
_ASSIGNMENT = re.compile(r"([A-Za-z][A-Za-z0-9_-]{0,63})=([^\s,;&\"']+)")
_URL_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")
_JSON_DEPTH = 3
"""Hyperparameters are JSON in text, whose texts may be JSON again."""


def looks_secret(name: str) -> bool:
    """Return whether a name says that its value is a secret: ``HF_TOKEN``, ``dbPassword``; not ``max_tokens``."""
    words = [word.lower() for word in _WORDS.findall(name)]
    return not _SECRET.isdisjoint(words) or not _KEYS.isdisjoint(pairwise(words))


def masked(value: Any, name: str = "", depth: int = _JSON_DEPTH) -> Any:
    """Return a value of a request as it may be shown: numbers and flags as they are, secrets as dots.

    Args:
        value: A value as JSON has them, or text that is JSON itself, as hyperparameters are.
        name: What it is called, which decides.
        depth: How often text is still looked into as JSON.
    """
    if isinstance(value, Mapping):
        named = value.get("Name")  # as metric definitions and tags have them
        return {key: masked(each, named if key == "Value" and named else key, depth) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked(each, name, depth) for each in value]
    if not isinstance(value, str):
        return value
    if depth and value[:1] in ("{", "[", '"'):
        try:
            inner = json.loads(value)
        except (ValueError, RecursionError):
            inner = None
        if inner is not None and (shown := masked(inner, name, depth - 1)) != inner:
            return json.dumps(shown, ensure_ascii=False)
    if looks_secret(name) and value and not _is_plain(value):
        return MASK
    value = _URL_PASSWORD.sub(f"{MASK}@", value)
    return _ASSIGNMENT.sub(lambda found: f"{found[1]}={MASK}" if looks_secret(found[1]) else found[0], value)


def _is_plain(text: str) -> bool:
    """Return whether a text is a flag or a small number: ``use_auth_token="true"`` hides nothing."""
    return text.strip('"').lower() in ("true", "false", "null", "none") or (text.strip('"').isdigit() and len(text) < 7)
