from __future__ import annotations

import pytest

from estimators.docker.build import explain


def explanation(*lines: str) -> str:
    return explain(lines, 1, base="python:9")


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("OSError: [Errno 28] No space left on device", "docker system df"),
        ("OSError: Could not find a suitable TLS CA certificate bundle, invalid path: /ca.pem", "PIP_CERT"),
        ("SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get issuer", "certificate authority"),
        ("Temporary failure resolving 'deb.debian.org'", "--network host"),
        ("/bin/sh: 1: apt-get: not found", "Debian or Ubuntu"),
        ("ERROR: ResolutionImpossible: for help visit https://pip.pypa.io", "--torch"),
    ],
)
def test_says_what_to_do(line: str, remedy: str) -> None:
    message = explanation("Step 5/9 : RUN something", line)
    assert message.startswith("docker build ended with exit code 1.\n    Step 5/9 : RUN something\n")
    assert line in message
    assert remedy in message.splitlines()[-1]


@pytest.mark.parametrize(
    "lines",
    [
        ("Step 2/9 : FROM ${BASE} AS training", "manifest for python:9 not found: manifest unknown"),
        (
            "#2 [internal] load metadata for docker.io/library/python:9",
            "#2 ERROR: python:9: not found",
        ),
        (
            "#3 [internal] load .dockerignore",
            "------",
            " > [internal] load metadata for docker.io/library/python:9:",
            "------",
            "ERROR: failed to solve: python:9: failed to resolve source metadata for docker.io/library/python:9",
        ),
    ],
)
def test_says_that_the_base_is_not_to_be_had(lines: tuple[str, ...]) -> None:
    assert "The base python:9 is not on this machine, and can't be pulled." in explanation(*lines)


def test_an_unknown_cause_speaks_for_itself() -> None:
    assert explanation("Step 5/9 : RUN something", "what is this") == (
        "docker build ended with exit code 1.\n    Step 5/9 : RUN something\n    what is this"
    )
