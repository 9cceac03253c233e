"""Nested ranks: each rank of an outer launcher may start an equal share of the inner ranks."""

from __future__ import annotations


def is_equal_share(rank: int, world_size: int, *, outer_rank: int, outer_size: int) -> bool:
    """Return whether an inner rank belongs to an outer rank, if all outer ranks have equal shares, in order.

    Examples:
        >>> is_equal_share(3, 4, outer_rank=1, outer_size=2), is_equal_share(1, 2, outer_rank=0, outer_size=2)
        (True, False)
    """
    share, rest = divmod(world_size, outer_size)
    return not rest and rank // share == outer_rank
