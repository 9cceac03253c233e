"""Fails without smddp.run, so deep that SageMaker's 1024 characters of a reason do not have the whole traceback."""

import smddp

WORDS = "a text that is not a number, and that makes each line of the traceback longer than most"


def parse(depth: int) -> int:
    return unwrap(depth - 1) if depth and smddp else int(WORDS)  # this comment makes the traceback longer, too


def unwrap(depth: int) -> int:
    return parse(depth)


parse(9)
