"""Detect secrets by name, by form, or as a private key. Pages, logs and reprs mask them, bundles leave them out.

The names and forms come from detect-secrets (its plugins ``keyword``, ``private_key`` and of single services); names
of machine-learning tools are added, and their ``token_ids`` are not secret. detect-secrets is not a dependency because
it brings an HTTP client, asks services whether a secret is valid, and recognises neither file names nor variables such
as ``WANDB_KEY``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from itertools import pairwise
from typing import Any

MASK = "••••••"
UNBUNDLED_MARK = ".smddp-unbundled"
"""A file that keeps its directory out of every bundle. The local platform makes it where it keeps keys and objects."""

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET = frozenset(
    {
        *("secret", "secrets", "password", "passwords", "passwd", "passphrase", "credential", "credentials", "creds"),
        *("apikey", "pat", "jwt", "webhook", "webhooks", "authorization", "bearer", "cookie"),
    }
)
_ENDINGS = ("password", "passwd", "passphrase", "secret", "apikey", "secretkey", "accesskey", "privatekey", "sshkey")
_ENDINGS_OF_TOKENS = ("authtoken", "accesstoken", "apitoken")
_TOKENS_OF_TEXT = frozenset(
    {
        *("eos", "bos", "pad", "unk", "sep", "cls", "mask", "special", "stop", "start", "end", "begin", "image"),
        *("audio", "video", "prefix", "suffix", "middle", "new", "decoder", "encoder", "forced", "padding"),
    }
)
"""Words before ``token`` that make it a token of a text, not a secret."""
_OF_TOKENS = frozenset(
    {
        *("id", "ids", "idx", "index", "indices", "type", "types", "count", "counts", "length", "len", "limit", "size"),
        *("dim", "dims", "embed", "embedding", "embeddings", "dropout", "drop", "level", "classification", "budget"),
        *("mask", "masks", "masking", "mixing", "mixer", "merge", "merging", "weight", "weights", "rate", "shift"),
        *("per", "num", "ratio", "pooling", "pruning", "position", "positions", "loss", "accuracy", "strategy"),
    }
)
"""Words after ``token`` that make it a token of a text, not a secret."""
_KEYS = frozenset(
    {
        *("api", "access", "private", "priv", "auth", "account", "result", "ssh", "gpg", "pgp", "rsa", "client"),
        *("service", "db", "database", "encryption", "signing", "master", "license", "shared", "session", "host"),
        *("sas", "storage", "subscription", "admin", "user", "wandb", "openai", "hf", "huggingface", "anthropic"),
        *("comet", "neptune", "cohere", "gemini", "google", "azure", "aws", "stripe", "sendgrid", "twilio"),
        *("datadog", "sentry", "github", "gitlab", "langchain", "langsmith", "pinecone", "mistral", "groq", "kaggle"),
    }
)
"""Words before ``key`` that make it a secret. In an upper-case variable, any word before ``KEY`` does, except these:"""
_PLAIN_KEYS = frozenset(
    {
        *("s3", "kms", "public", "pub", "sort", "primary", "foreign", "partition", "object", "bucket", "cache"),
        *("image", "label", "input", "output", "data", "text", "target", "metric", "group", "index", "by"),
    }
)
_PASSES = frozenset(
    {
        *("db", "database", "mysql", "sql", "postgres", "pg", "redis", "mongo", "smtp", "mail", "email", "ldap"),
        *("user", "admin", "root", "key", "ssh", "ftp", "sftp", "http", "proxy", "git", "login", "auth", "basic", "my"),
    }
)
"""Words before ``pass`` that make it a password."""

_TOKEN = re.compile(
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"
    r"|\bgh[pousr]_[A-Za-z0-9]{36,}|\bgithub_pat_[A-Za-z0-9_]{40,}|\bglpat-[A-Za-z0-9_-]{20,}"
    r"|\bhf_[A-Za-z0-9]{30,}|\bsk-[A-Za-z0-9_-]{20,}|\bnpm_[A-Za-z0-9]{36}|\bpypi-[A-Za-z0-9_-]{40,}"
    r"|\bxox[abeoprs]-[A-Za-z0-9-]{10,}|\bSG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}|\b[rs]k_live_[A-Za-z0-9]{20,}"
    r"|\bAIza[A-Za-z0-9_-]{35}|https://hooks\.slack\.com/[A-Za-z]+/[A-Za-z0-9/]+"
    r"|\beyJ[A-Za-z0-9_-]{5,}\.eyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]*"
    r"|-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----[^-]{20,}(?:-----END [A-Z0-9 ]+-----)?"
)
_BEARER = re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{8,}")
_URL_PASSWORD = re.compile(r"(?<=://)[^/\s?#]*@")
_VALUE = r"""(?:"[^"]*"|'[^']*'|(?:(?i:bearer|basic|token)[ ]+)?[^\s,;&"'=][^\s,;&"']*)"""
_ASSIGNMENT = re.compile(rf"""([A-Za-z][A-Za-z0-9_.-]{{0,63}})(["']?[ ]*=[ ]*|["']:[ ]*|:[ ]+)({_VALUE})""")
_OPTION = re.compile(r"(--?)([A-Za-z][A-Za-z0-9_.-]{0,63})([ ]+)([^\s-]\S*)")
_JSON_DEPTH = 3
"""Nested levels of JSON text to look into: a hyperparameter is JSON text, whose strings may be JSON again."""

_KEY_WORDS = (b"PRIVATE KEY", b"PuTTY-User-Key-File-")
_KEY_IN_FILE = re.compile(
    rb"\A\s*(?:-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY|PuTTY-User-Key-File-|---- BEGIN SSH2 ENCRYPTED PRIVATE KEY)"
    rb"|-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----(?:\s|\\[nr])+[A-Za-z0-9+/=]{40}"
)


def looks_secret(name: str) -> bool:
    """Return whether a name suggests that its value is a secret: ``HF_TOKEN``, ``dbPassword``; not ``max_tokens``."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if not _SECRET.isdisjoint(words) or any(word.endswith(_ENDINGS + _ENDINGS_OF_TOKENS) for word in words):
        return True
    neighbours = zip(["", *words], words, [*words[1:], ""], strict=False)
    return any(_is_secret_word(*each, is_variable=name.isupper()) for each in neighbours)


def _is_secret_word(before: str, word: str, after: str, *, is_variable: bool) -> bool:
    """Return whether a word marks the whole name as secret, given its neighbours."""
    match word:
        case "token":
            return before not in _TOKENS_OF_TEXT and after not in _OF_TOKENS
        case "key":
            is_last = before != "" and after == "" and not before.isdigit()
            return before in _KEYS or (is_variable and is_last and before not in _PLAIN_KEYS)
        case "pwd":
            return before != "" and after == ""
        case "pass":
            return after == "" and (before in _PASSES or (is_variable and before != ""))
    return False


def holds_private_key(content: bytes) -> bool:
    """Return whether a file is or contains a private key; a header alone, as in a scanner's source, does not count."""
    return any(word in content for word in _KEY_WORDS) and _KEY_IN_FILE.search(content) is not None


def masked(value: Any, name: str = "", depth: int = _JSON_DEPTH) -> Any:
    """Return a copy of a JSON-like value with its secrets masked; numbers and flags stay.

    `name` is the value's key. Text is parsed as JSON up to `depth` levels, because hyperparameters are JSON text.
    """
    if isinstance(value, Mapping):
        return {key: masked(each, _name_of(value, key, name), depth) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked(each, _option(before, each) or name, depth) for before, each in pairwise([None, *value])]
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
    return masked_text(value)


def masked_repr(value: Any, field: str) -> str:
    """Return the repr of a dataclass object with the secrets of one field masked."""
    shown = {each.name: getattr(value, each.name) for each in fields(value)}
    shown[field] = masked(shown[field])
    return f"{type(value).__name__}({', '.join(f'{name}={each!r}' for name, each in shown.items())})"


def masked_text(text: str) -> str:
    """Return a text, such as a line of a log, with its secrets masked."""
    text = _TOKEN.sub(MASK, _URL_PASSWORD.sub(f"{MASK}@", text))
    text = _ASSIGNMENT.sub(lambda found: _masked_value(found[0], found[1], f"{found[1]}{found[2]}", found[3]), text)
    text = _OPTION.sub(
        lambda found: _masked_value(found[0], found[2], f"{found[1]}{found[2]}{found[3]}", found[4]), text
    )
    return _BEARER.sub(rf"\1{MASK}", text)


def _masked_value(whole: str, name: str, before: str, value: str) -> str:
    quote = value[0] if value[0] in "\"'" else ""
    if not looks_secret(name) or _is_plain(value.strip("\"'")) or not value.strip("\"'"):
        return whole
    return f"{before}{quote}{MASK}{quote}"


def _name_of(values: Mapping[Any, Any], key: Any, name: str) -> str:
    """Return the name that decides about a member: its Name in a Name/Value pair (as in tags), its key, or `name`."""
    if key in ("Value", "value"):
        beside = values.get("Name") or values.get("Key") or values.get("name")
        key = beside if isinstance(beside, str) else key
    return str(key) if looks_secret(str(key)) or not looks_secret(name) else name


def _option(word: Any, value: Any) -> str:
    """Return a secret option's name if the next word is its value, as in ``["--token", "…"]``; else an empty string."""
    if not (isinstance(word, str) and word.startswith("-") and "=" not in word and looks_secret(word)):
        return ""
    return "" if isinstance(value, str) and value.startswith("--") else word


def _is_plain(text: str) -> bool:
    """Return whether a text is a flag or a small number: ``use_auth_token="true"`` contains no secret."""
    return text.strip('"').lower() in ("true", "false", "null", "none") or (text.strip('"').isdigit() and len(text) < 7)
