"""A failed job's FailureReason: what the host that failed first has to say, in AWS's form and within its limit."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from pathlib import PurePath

from estimators.hosts.exit import Exit
from estimators.hosts.opt_ml_tree import HostTree
from smddp.job import failure_report
from smddp.job.failure_report import within_limit

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

    Why is what the host that failed first has written about it, else any host that failed, else any host. If none has
    written anything, it is the last lines that the first one printed.

    Args:
        exits: Exit codes by host, in the order in which the hosts ended; one of them is not 0.
        trees: Every host's /opt/ml.
        tails: Every host's last lines.
        remark: What the platform knows of it and the program can't have known, such as why data could not be read.
        told_in: The file in which a program says why it failed, relative to /opt/ml.
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
    """Return ``InternalServerError: <lost hosts, and how>``; None if none was. A loss explains other failures."""
    lost = [f"{host} was lost: {end.lost}" for host, end in exits.items() if end.lost]
    return within_limit(f"InternalServerError: {'; '.join(lost)}.") if lost else None


def tells_outcome(tree: HostTree) -> bool:
    """Return whether the program of the host with this /opt/ml came to an end of its own, and wrote which."""
    return any(map(tree.status, (_FAILURE, _SUCCESS)))


def _first_text(trees: Iterable[HostTree], file: PurePath) -> str:
    return next(filter(None, (_text(tree, file) for tree in trees)), "")


def _text(tree: HostTree, path: PurePath) -> str:
    status = tree.status(path)
    if status is None or not stat.S_ISREG(status.st_mode):
        return ""
    with tree.reading(path) as file:
        return failure_report.read(file)
