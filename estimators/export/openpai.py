"""A job as a job file of OpenPAI's protocol, version 2, for people to read, change and submit.

OpenPAI joins the commands of a task role by ``&&`` to one line of its containers' shell, and reads ``<% … %>`` in them
as references of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from estimators.errors import EstimatorError
from estimators.export import shell
from estimators.export.portable_job import PortableJob

PORT_LABEL = "SynPort"
"""The port that is reserved for rank 0's store. OpenPAI's older examples call it so, and read it by this name."""

_TASK_ROLE = "worker"
_LONGEST_NAME = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What each task instance runs in."""

    image: str
    """A Docker image with smddp and what the script imports."""
    cpus: int
    memory_mb: int
    gpus: int

    def __post_init__(self) -> None:
        """Raise EstimatorError for what no container can have."""
        if not self.image or self.cpus < 1 or self.memory_mb < 1 or self.gpus < 0:
            raise EstimatorError(
                f"A container of image {self.image!r}, {self.cpus} CPUs, {self.memory_mb} MB and {self.gpus} GPUs: "
                "give the name of an image, at least one CPU and one MB, and no negative number."
            )


def job_file(job: PortableJob, container: Container, *, run_dir: str, python: str, what: str) -> str:
    """Write the job file: one task role whose instances are the job's hosts.

    Args:
        job: The job.
        container: What each instance runs in.
        run_dir: Where the run keeps its model, output and checkpoints: on storage that all instances share.
        python: The Python of the image.
        what: Its first line, for people.

    Returns:
        YAML.
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
                # One that fails ends the job: the others wait for it. It has succeeded when all have.
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
    if "\x85" in text:  # a line's end to YAML, which a reader makes a blank: escaped, every character is itself
        text = yaml.safe_dump(protocol, sort_keys=False, width=math.inf)
    return f"# {' '.join(what.split())}\n{text}"


def _commands(job: PortableJob, *, run_dir: str, python: str) -> list[str]:
    """Return what each instance runs. ``smddp run`` finds the other instances by the variables that OpenPAI sets."""
    words = [word for part in job.run_command(run_dir=run_dir, python=python) for word in part]
    # A protocol file has no limit of time: SIGTERM after it is a stop with a checkpoint, and exit code 75.
    limited = ["timeout", "--preserve-status", str(job.max_run), *shell.env_words(job.environment), *words]
    return [*shell.exports(job.environment), shell.command_line(limited)]
