"""A job as a batch script of Slurm, for people to read, change and send by sbatch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from estimators.export import shell
from estimators.export.portable_job import PortableJob

WARNING_SECONDS = 120
"""How long before the end of its time a job is told to stop: what SageMaker gives, too."""

_HEAD = """\
#!/bin/bash
# {what}
#SBATCH --job-name={name}
#SBATCH --nodes={hosts}
#SBATCH --ntasks-per-node=1
#SBATCH --time={minutes}
# Two minutes before its time is up each rank is told to stop, with a checkpoint.
#SBATCH --signal=TERM@{warning}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
"""

_RUN = """
# scancel and preemption tell this shell as well, and it must wait until the ranks have saved.
trap : TERM
srun \\
  {command}
code=$?

# 75: stopped, with all work in a checkpoint. If the job still runs, its time was nearly up: it goes on later. Slurm
# itself requeues a job that was preempted; one that was cancelled stays so.
if [ "$code" = 75 ] && [ "$(squeue --noheader --job "$SLURM_JOB_ID" --format=%T)" = RUNNING ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


def _directive(option: str) -> str:
    """Return an option as sbatch reads it in a script: there blanks part words, and quotes and # begin something."""
    if not set(option) & set(" \t'\"\\#"):
        return option
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def batch_script(job: PortableJob, *, options: Sequence[str] = (), run_dir: str, what: str) -> str:
    """Write the script.

    Args:
        job: The job.
        options: More options for sbatch, such as ``--partition=gpu``; they win over those that are made here.
        run_dir: Where the run keeps its model, output and checkpoints: a directory that all nodes share.
        what: Its first line, for people.
    """
    head = _HEAD.format(
        what=" ".join(what.split()),
        name=job.name,
        hosts=job.hosts,
        minutes=math.ceil(job.max_run / 60),
        warning=WARNING_SECONDS,
    )
    given = "".join(f"#SBATCH {_directive(option)}\n" for option in options)
    variables = "".join(f"{line}\n" for line in shell.exports(job.environment))
    words = filter(None, [shell.env_words(job.environment), *job.run_command(run_dir=run_dir)])
    command = " \\\n  ".join(map(shell.command_line, words))
    return head + given + (f"\n{variables}" if variables else "") + _RUN.format(command=command)
