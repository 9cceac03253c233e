"""Explain why a build failed: known causes by the builder's own words, else the last lines of its output."""

from __future__ import annotations

import re
from collections.abc import Sequence

from estimators.docker.build_context import RECIPE

_CAUSES = (
    (
        r"no space left on device",
        "The disk of the Docker engine is full. `docker system df` shows what takes the space; an image with torch's "
        "CUDA build takes 7 GB.",
    ),
    (
        r"TLS CA certificate bundle, invalid path",
        "PIP_CERT is set here, and the base has no such file. Unset it, or put the certificates into the base.",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|SSLError",
        "The base does not trust the certificates on the way to the package index. Put your certificate authority "
        "into the base, and set PIP_CERT to its bundle there.",
    ),
    (
        r"Temporary failure (in name resolution|resolving)|Could not resolve|Network is unreachable|Failed to fetch",
        "The build can't reach the package indexes. Try `--network host`; behind a proxy set HTTP_PROXY, HTTPS_PROXY "
        "and PIP_INDEX_URL.",
    ),
    (
        r"apt-get: (command )?not found",
        "The base has no apt: take an image of Debian or Ubuntu.",
    ),
    (
        r"No matching distribution found|ResolutionImpossible",
        "pip finds no versions that fit. What the base has stays as it is: take another base, or say what to install "
        "with --torch.",
    ),
)


_STEP = re.compile(r"(?:Step \d+/\d+ :| > \[[^\]]*\]|#\d+ \[[^\]]*\]) (.*)")
"""Beginning of a step in the classic builder and in BuildKit's plain progress. BuildKit repeats it for the failed
step."""


def explain(tail: Sequence[str], code: int, *, base: str) -> str:
    """Return the message of a failed build: its exit code, its last lines, and a remedy if one is known."""
    lines = [f"docker build ended with exit code {code}.", *(f"    {line}" for line in tail if line)]
    remedy = _remedy(tail, base=base)
    return "\n".join([*lines, remedy] if remedy else lines)


def _remedy(tail: Sequence[str], *, base: str) -> str | None:
    said = "\n".join(tail)
    for pattern, remedy in _CAUSES:
        if re.search(pattern, said, re.IGNORECASE):
            return remedy
    steps = [step[1] for line in tail if (step := _STEP.match(line))]
    if steps and steps[-1].startswith(("FROM ", "load metadata for ")):
        return (
            f"The base {base} is not on this machine, and can't be pulled. See that its name is right, log in to its "
            "registry (`docker login`), or give one that is here with --base: `docker images` lists them. Where no "
            f"registry can be reached, {RECIPE / 'make-base'} makes one."
        )
    return None
