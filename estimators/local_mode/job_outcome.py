"""How a job ended, from how its hosts did."""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from estimators.hosts.exit import Exit
from estimators.hosts.failure import algorithm_error, loss_of_hosts, tells_outcome
from estimators.hosts.opt_ml_tree import HostTree
from estimators.local_mode.containers import End
from estimators.local_mode.directory import Outcome
from smddp.job.failure_report import within_limit
from smddp.process.preemption import RESUMABLE

_KILLED = 128 + signal.SIGKILL
_LOST = (
    f"its container ended with {_KILLED} (it was killed, or its first process was), and the job had not asked for it"
)


def job_outcome(
    ends: Sequence[End],
    *,
    told: Collection[str],
    asked: bool,
    left: Collection[str],
    roots: Mapping[str, Path],
    tails: Mapping[str, str],
    compose_code: int,
    compose_said: str,
) -> Outcome:
    """The job's outcome.

    Args:
        ends: How the hosts ended, first to last.
        told: The hosts that were told to end, because another had, or because of `asked`.
        asked: Whether the user asked for the job's end.
        left: The hosts that Compose left running when it ended by itself.
        roots: Every host's /opt/ml.
        tails: Every host's last lines.
        compose_code: Compose's own exit code.
        compose_said: What Compose itself had to say.
    """
    failed = [end for end in ends if end.code and end.host not in told]
    if failed and all(end.code == RESUMABLE for end in failed):
        reason = f"its hosts were told to stop, and saved their work (exit code {RESUMABLE})"
        return Outcome(status="Stopped", host=failed[0].host, reason=reason)
    if failed:
        codes = {end.host: end.code for end in failed}
        trees = {host: HostTree(root) for host, root in roots.items()}
        # What else failed, failed of it: the others' "connection closed" says less, but often comes first.
        killed = [end for end in failed if end.code == _KILLED and not tells_outcome(trees[end.host])]
        if short := next((end for end in killed if end.out_of_memory), None):
            alone = {short.host: trees[short.host]}
            reason = algorithm_error({short.host: short.code}, alone, tails, "the machine had no memory left for it")
            return Outcome(status="Failed", host=short.host, reason=reason)
        if lost := loss_of_hosts({end.host: Exit(code=end.code, lost=_LOST) for end in killed}):
            return Outcome(status="Failed", host=killed[0].host, reason=lost)
        return Outcome(status="Failed", host=failed[0].host, reason=algorithm_error(codes, trees, tails))
    if not asked and (cut := [end.host for end in ends if end.host in left and end.code]):
        what = f"Docker Compose ended with {compose_code} while {', '.join(cut)} ran, and had to be told to stop"
        return Outcome(status="Failed", host=None, reason=within_limit(f"{what}; it said: {compose_said}"))
    if asked and any(end.code for end in ends):
        return Outcome(status="Stopped", host=None, reason="it was stopped by you (Ctrl-C)")
    if len(ends) < len(roots) or (compose_code and not ends):
        if asked:
            return Outcome(status="Stopped", host=None, reason="it was stopped by you (Ctrl-C) before all hosts ran")
        remedy = " An image that is to be on this machine: `smddp image build`." if "Pulling" in compose_said else ""
        return Outcome(
            status="Failed",
            host=None,
            reason=within_limit(f"Docker Compose could not start it: {compose_said}", remedy),
        )
    return Outcome(status="Completed", host=None, reason="")
