"""Reads a channel that the job may not have."""

import smddp


def main(job: smddp.Job) -> None:
    print(sorted(job.channels["training"].iterdir()))


if __name__ == "__main__":
    smddp.run(main)
