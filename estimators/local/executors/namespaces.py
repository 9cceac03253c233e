"""Whether a program can have namespaces of its own on this machine: found out by starting one that does nothing."""

from __future__ import annotations

import os
import tempfile

from estimators.local.executors.executor import NoNamespacesError
from estimators.local.executors.supervised_process import SupervisedProcess, SupervisedProgram


def why_no_namespaces(*, private_network: bool = False) -> str | None:
    """Return why a program can't have namespaces of its own here; None if it can.

    Args:
        private_network: Whether it is to have a network of its own, too.

    Raises:
        HostStartError: Nothing is known, for it could not be started for another reason.
    """
    with tempfile.TemporaryDirectory(prefix="smddp-probe-") as directory:
        program = SupervisedProgram(
            name="probe",
            argv=("true",),
            environment={"PATH": os.environ.get("PATH", os.defpath)},
            directory="/",
            isolated=True,
            ml_root=directory,
            private_network=private_network,
        )
        try:
            process = SupervisedProcess(program)
        except NoNamespacesError as error:
            return error.why
        with process.output:
            process.wait()
    return None
