"""Ranks within ranks: what one launcher started may start ranks of its own, an equal share for each."""

from __future__ import annotations


def is_equal_share(rank: int, world_size: int, *, outer_rank: int, outer_size: int) -> bool:
    """Return whether a rank belongs to an outer one, all of which have as many ranks, in their order.

    Args:
        rank: The inner rank, 0 to world_size - 1.
        world_size: All inner ranks.
        outer_rank: Whose rank it would be.
        outer_size: All outer ranks.

    Examples:
        >>> is_equal_share(3, 4, outer_rank=1, outer_size=2), is_equal_share(1, 2, outer_rank=0, outer_size=2)
        (True, False)
    """
    share, rest = divmod(world_size, outer_size)
    return not rest and rank // share == outer_rank
