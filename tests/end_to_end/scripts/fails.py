"""Fails at its first line, which no check before the start can know."""

import smddp


def main(_job: smddp.Job) -> None:
    raise ValueError("label 17 is not one of the 10 classes")


if __name__ == "__main__":
    smddp.run(main)
