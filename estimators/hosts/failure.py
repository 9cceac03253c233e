"""The end of a host, and the FailureReason of a failed job: the first failed host's message, within AWS's limit."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from estimators.hosts.opt_ml_tree import HostTree
from smddp.failure import report_file, within_limit

_FAILURE, _SUCCESS = PurePath("output", "failure"), PurePath("output", "success")


def algorithm_error(
    exits: Mapping[str, int],
    trees: Mapping[str, HostTree],
    tails: Mapping[str, str],
    remark: str | None = None,
    *,
    told_in: PurePath = _FAILURE,
) -> str:
    """Return ``AlgorithmError: <why>, exit code: <n>``.

    The reason is the failure file of the first failed host, else of another failed host, else of any host, else the
    last lines of the first failed host. ``exits`` is in the order in which the hosts ended, with at least one code that
    is not 0. ``remark`` adds a cause that only the platform knows, such as unreadable data. ``told_in`` is the failure
    file, relative to /opt/ml.
    """
    failed = [host for host, code in exits.items() if code]
    first = failed[0]
    why = _first_text((trees[host] for host in dict.fromkeys([*failed, *trees])), told_in)
    if not why:
        printed = tails[first].strip()
        why = f"{first} wrote no /opt/ml/{told_in}" + (f"; it printed: {printed}" if printed else "")
    if remark:
        why = f"{why.rstrip('.')}; {remark}"
    return within_limit(f"AlgorithmError: {why}", f", exit code: {exits[first]}")


def loss_of_hosts(exits: Mapping[str, Exit]) -> str | None:
    """Return ``InternalServerError: <lost hosts and causes>``; None if no host was lost.

    A loss explains other failures.
    """
    lost = [f"{host} was lost: {end.lost}" for host, end in exits.items() if end.lost]
    return within_limit(f"InternalServerError: {'; '.join(lost)}.") if lost else None


def tells_outcome(tree: HostTree) -> bool:
    """Return whether the program with this /opt/ml ended by itself and wrote its success or failure."""
    return any(map(tree.status, (_FAILURE, _SUCCESS)))


def _first_text(trees: Iterable[HostTree], file: PurePath) -> str:
    return next(filter(None, (_text(tree, file) for tree in trees)), "")


def _text(tree: HostTree, path: PurePath) -> str:
    status = tree.status(path)
    if status is None or not stat.S_ISREG(status.st_mode):
        return ""
    with tree.reading(path) as file:
        return report_file.read(file)


@dataclass(kw_only=True, slots=True, frozen=True)
class Exit:
    """The end of a host, as its executor saw it."""

    code: int
    """Exit code of the program; 128 + the signal's number if a signal ended it."""
    lost: str | None = None
    """Cause of the end if neither the program nor the platform ended the host, such as a lost machine; else None."""
    shortage: str | None = None
    """Resource that ran out, such as memory, if the machine ended a process for it; else None."""
