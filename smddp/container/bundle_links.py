"""Where the symbolic links of a bundle lead, looked up in the table of its members: the disk is not asked.

Each link is followed once, whoever leads through it, and no further than Linux would: so it is work in proportion to
the length of what the links say.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

MOST_TURNS = 40
"""As many links as Linux itself follows for one name."""


class RefusedLinkError(Exception):
    """A link leads where none may, or too far.

    Args:
        link: Its path.
        problem: What is wrong with it.
    """

    def __init__(self, link: str, problem: str) -> None:
        super().__init__(link, problem)
        self.link = link
        self.problem = problem


def check_links(links: Mapping[PurePosixPath, str]) -> None:
    """See that all links lead to places in the tree.

    Args:
        links: What each says, relative to where it lies; by its path, on which there is no link but itself.

    Raises:
        RefusedLinkError: One leads out of the tree, or through more than `MOST_TURNS` links.
    """
    table = _Table({str(path): target for path, target in links.items()})
    for path in table.links:
        _, turns = table.follow(path, depth=1)
        if turns > MOST_TURNS:
            raise RefusedLinkError(path, f"it leads through more than {MOST_TURNS} links")


class _Table:
    """Paths are text without a slash at their ends, and the root is the empty one."""

    def __init__(self, links: Mapping[str, str]) -> None:
        self.links = links
        self._followed: dict[str, tuple[str, int]] = {}
        self._open: set[str] = set()

    def follow(self, link: str, *, depth: int) -> tuple[str, int]:
        """Return where a link leads, and through how many links, itself included; once they are too many, that is all.

        Args:
            link: Its path.
            depth: How many links are being followed, this one included.
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
            # Links that lead to each other lead nowhere. They count as directories, so that they say no way out either.
            if here in self.links and here not in self._open:
                here, more = self.follow(here, depth=depth + 1)
                turns += more
                if turns > MOST_TURNS:
                    break
        return here, turns
