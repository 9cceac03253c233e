"""Find out whether a program can have its own namespaces on this machine, by starting one that does nothing."""

from __future__ import annotations

import os
import tempfile

from estimators.local.executors.executor import NoNamespacesError
from estimators.local.executors.supervised_process import SupervisedProcess, SupervisedProgram


def why_no_namespaces(*, private_network: bool = False) -> str | None:
    """Return why a program can't have its own namespaces here; None if it can.

    ``private_network`` asks for its own network, too. Raise HostStartError if the probe fails for another reason.
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
