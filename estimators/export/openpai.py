"""A job as an OpenPAI job file, protocol version 2, for people to read, change and submit.

OpenPAI joins the commands of a task role with ``&&`` into one shell line, and expands ``<% … %>`` as its own
references.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from estimators.errors import EstimatorError
from estimators.export.portable_job import PortableJob, command_line

PORT_LABEL = "SynPort"
"""Label of the port reserved for rank 0's store, as in OpenPAI's older examples, which read it by this name."""

_TASK_ROLE = "worker"
_LONGEST_NAME = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """Image and resources of each task instance."""

    image: str
    """Docker image with smddp and the script's imports."""
    cpus: int
    memory_mb: int
    gpus: int

    def __post_init__(self) -> None:
        """Raise EstimatorError for resources that no container can have."""
        if not self.image or self.cpus < 1 or self.memory_mb < 1 or self.gpus < 0:
            raise EstimatorError(
                f"A container of image {self.image!r}, {self.cpus} CPUs, {self.memory_mb} MB and {self.gpus} GPUs: "
                "give the name of an image, at least one CPU and one MB, and no negative number."
            )


def job_file(job: PortableJob, container: Container, *, run_dir: str, python: str, what: str) -> str:
    """Return the job file as YAML: one task role whose instances are the job's hosts.

    All instances share ``run_dir``, the directory of the model, output and checkpoints. ``python`` is the image's
    Python, ``what`` the first comment.
    """
    import yaml

    protocol = {
        "protocolVersion": 2,
        "name": job.name[:_LONGEST_NAME].rstrip("-"),
        "type": "job",
        "prerequisites": [{"name": "image", "type": "dockerimage", "uri": container.image}],
        "taskRoles": {
            _TASK_ROLE: {
                "instances": job.hosts,
                # One failed instance ends the job, because the others would wait for it. The job succeeds when all
                # instances do.
                "completion": {"minFailedInstances": 1, "minSucceededInstances": job.hosts},
                "dockerImage": "image",
                # Docker's 64 MB of shared memory are too few for DataLoader's workers and for NCCL.
                "extraContainerOptions": {"shmMB": container.memory_mb // 2},
                "resourcePerInstance": {
                    "cpu": container.cpus,
                    "memoryMB": container.memory_mb,
                    "gpu": container.gpus,
                    "ports": {PORT_LABEL: 1},
                },
                "commands": _commands(job, run_dir=run_dir, python=python),
            }
        },
    }
    text: str = yaml.safe_dump(protocol, sort_keys=False, width=math.inf, allow_unicode=True)
    if "\x85" in text:  # YAML folds this line break (NEL) to a blank; the escaped form keeps it
        text = yaml.safe_dump(protocol, sort_keys=False, width=math.inf)
    return f"# {' '.join(what.split())}\n{text}"


def _commands(job: PortableJob, *, run_dir: str, python: str) -> list[str]:
    """Return the commands of each instance. ``smddp run`` finds the other instances from OpenPAI's variables."""
    words = [word for part in job.run_command(run_dir=run_dir, python=python) for word in part]
    # The protocol has no time limit: `timeout` sends SIGTERM after max_run, and the job saves a checkpoint and exits
    # with 75.
    limited = ["timeout", "--preserve-status", str(job.max_run), *job.env_words(), *words]
    return [*job.exports(), command_line(limited)]
