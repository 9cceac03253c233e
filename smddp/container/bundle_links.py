"""Resolves the symbolic links of a bundle in the table of its members, without reading the disk.

Each link is followed once and cached, and no further than Linux would: the work is proportional to the links' length.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

MOST_TURNS = 40
"""The number of links that Linux itself follows for one name."""


class RefusedLinkError(Exception):
    """The link at a path leads outside the tree, or through too many links."""

    def __init__(self, link: str, problem: str) -> None:
        super().__init__(link, problem)
        self.link = link
        self.problem = problem


def check_links(links: Mapping[PurePosixPath, str]) -> None:
    """Check that all links, given as relative targets by path, stay in the tree; raise RefusedLinkError otherwise.

    A path has no link among its parents. A chain of more than `MOST_TURNS` links is refused, too.
    """
    table = _Table({str(path): target for path, target in links.items()})
    for path in table.links:
        _, turns = table.follow(path, depth=1)
        if turns > MOST_TURNS:
            raise RefusedLinkError(path, f"it leads through more than {MOST_TURNS} links")


class _Table:
    """The links by path. Paths are text without a slash at either end; the root is the empty text."""

    def __init__(self, links: Mapping[str, str]) -> None:
        self.links = links
        self._followed: dict[str, tuple[str, int]] = {}
        self._open: set[str] = set()

    def follow(self, link: str, *, depth: int) -> tuple[str, int]:
        """Return a link's target, and the number of links to it, this one included; ``depth`` counts the open links.

        If the number exceeds MOST_TURNS, the target is not final.
        """
        if (followed := self._followed.get(link)) is not None:
            return followed
        if depth > MOST_TURNS:
            return link, depth
        self._open.add(link)
        followed = self._followed[link] = self._walk(link, depth)
        self._open.remove(link)
        return followed

    def _walk(self, link: str, depth: int) -> tuple[str, int]:
        here = link.rpartition("/")[0]
        turns = 1
        for part in self.links[link].split("/"):
            if part in ("", "."):
                continue
            if part == "..":
                if not here:
                    raise RefusedLinkError(link, f"it links to {self.links[link]}, outside its directory")
                here = here.rpartition("/")[0]
                continue
            here = f"{here}/{part}" if here else part
            # Links in a circle have no target. They count as directories, so that `..` behind them is checked as well.
            if here in self.links and here not in self._open:
                here, more = self.follow(here, depth=depth + 1)
                turns += more
                if turns > MOST_TURNS:
                    break
        return here, turns
