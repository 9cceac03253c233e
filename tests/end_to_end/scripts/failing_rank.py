"""The second rank of the second host fails while the others wait for it."""

from dataclasses import dataclass

import torch

import smddp


@dataclass
class Config:
    label: int = 17


def main(config: Config, job: smddp.Job) -> None:
    if job.cluster.node_rank == 1 and job.cluster.local_rank == 1:
        raise ValueError(f"label {config.label} is not one of the 10 classes")
    torch.distributed.all_reduce(torch.ones(1))


if __name__ == "__main__":
    smddp.run(main)
