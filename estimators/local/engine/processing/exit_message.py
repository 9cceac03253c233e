"""A processing job's ExitMessage: the text that its programs leave in ``/opt/ml/output/message``."""

from __future__ import annotations

import codecs
import stat
from collections.abc import Mapping
from pathlib import PurePath

from estimators.hosts.opt_ml_tree import HostTree
from estimators.local.engine.errors import FailedJobError

MESSAGE = PurePath("output", "message")
LIMIT_BYTES = 1024
"""AWS's limit on a message, and on the messages of all hosts together."""


def exit_message(trees: Mapping[str, HostTree]) -> str:
    """Return the messages of all hosts, joined and cut as on AWS; raise FailedJobError if one is not UTF-8."""
    return _cut("".join(_message(host, tree) for host, tree in trees.items()).encode(), whole=False)


def _message(host: str, tree: HostTree) -> str:
    status = tree.status(MESSAGE)
    if status is None or not stat.S_ISREG(status.st_mode):
        return ""
    with tree.reading(MESSAGE) as path, path.open("rb") as file:
        content = file.read(LIMIT_BYTES + 1)
    try:
        return _cut(content, whole=len(content) <= LIMIT_BYTES)
    except UnicodeDecodeError as error:
        raise FailedJobError(
            f"ClientError: /opt/ml/{MESSAGE} of {host} is not UTF-8 ({error.reason} at byte {error.start}); write text."
        ) from error


def _cut(content: bytes, *, whole: bool) -> str:
    """Return the first `LIMIT_BYTES` as text; leave out a character that the cut splits, unless ``whole``."""
    return codecs.getincrementaldecoder("utf-8")().decode(content[:LIMIT_BYTES], final=whole)
