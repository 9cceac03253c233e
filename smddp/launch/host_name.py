"""The name that this host has in the job, for the lines and reports of its launcher."""

from __future__ import annotations

import os
import socket

from smddp.cluster import without_run_variables


def host_name() -> str:
    """Return this host's name in the job; the machine's own name if the job gives it none."""
    return without_run_variables(os.environ).get("SM_CURRENT_HOST") or socket.gethostname()
