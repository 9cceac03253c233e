"""A job as a Slurm batch script, for people to read, change and submit with sbatch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from estimators.export.portable_job import PortableJob, command_line

WARNING_SECONDS = 120
"""Seconds between the stop signal and the end of a job's time, as on SageMaker."""

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
    """Return an option for an #SBATCH line, quoted if it contains a blank, a quote, a backslash or a #."""
    if not set(option) & set(" \t'\"\\#"):
        return option
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def batch_script(job: PortableJob, *, options: Sequence[str] = (), run_dir: str, what: str) -> str:
    """Return the batch script.

    ``options`` are more options for sbatch, and override the generated ones. All nodes share ``run_dir``, the directory
    of the model, output and checkpoints. ``what`` is the first comment.
    """
    head = _HEAD.format(
        what=" ".join(what.split()),
        name=job.name,
        hosts=job.hosts,
        minutes=math.ceil(job.max_run / 60),
        warning=WARNING_SECONDS,
    )
    given = "".join(f"#SBATCH {_directive(option)}\n" for option in options)
    variables = "".join(f"{line}\n" for line in job.exports())
    words = filter(None, [job.env_words(), *job.run_command(run_dir=run_dir)])
    command = " \\\n  ".join(map(command_line, words))
    return head + given + (f"\n{variables}" if variables else "") + _RUN.format(command=command)
