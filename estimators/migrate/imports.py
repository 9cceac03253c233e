"""The imports of a migrated script: the Estimator's in place of the SDK class's, and none that nothing uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import libcst as cst

from estimators.migrate.job import ScriptJob
from estimators.migrate.script import Edit, Script, bound_name

_OF_A_TOOL = ("# noqa", "# type:", "# pylint", "# isort", "# pyright")
"""Beginnings of comments about the import beside them, which are removed with it."""


class Imports:
    """The imports of a script with migrated jobs."""

    def __init__(self, script: Script, jobs: Sequence[ScriptJob], needed: Sequence[str]) -> None:
        """Find the imports that nothing uses after the migration; ``needed`` are the import statements of the jobs."""
        self._script = script
        self._needed = needed
        self._removed: dict[cst.CSTNode, set[str]] = {}
        self._classes: set[cst.CSTNode] = set()
        replaced = {node for job in jobs for node in job.replaced}
        classes = {node for job in jobs for node in job.classes}
        written = {each.evaluated_value for each in script.nodes(cst.SimpleString)}
        bound: dict[tuple[cst.CSTNode, str], set[cst.CSTNode]] = {}
        for each in script.imports():  # of ``import a.b`` there are two, a and a.b
            uses = bound.setdefault((each.node, each.name.partition(".")[0]), set())
            uses |= {access.node for access in each.references}
        for (node, name), uses in bound.items():
            if any(use in replaced and self._is_in(use, classes) for use in uses):
                self._classes.add(node)
            if uses and uses <= replaced and name not in written:
                self._removed.setdefault(node, set()).add(name)

    def _is_in(self, node: cst.CSTNode, classes: Iterable[cst.CSTNode]) -> bool:
        parent: cst.CSTNode = node
        while isinstance(parent, cst.Attribute | cst.Name):
            if parent in classes:
                return True
            parent = self._script.parent(parent)
        return False

    def removed_names(self) -> set[str]:
        """Return the names that are no longer imported."""
        return {name for found in self._removed.values() for name in found}

    def edits(self) -> dict[cst.CSTNode, Edit]:
        """Return the edits of the statements."""
        edits: dict[cst.CSTNode, Edit] = {}
        carried: dict[cst.CSTNode, list[cst.EmptyLine]] = {}
        for statement in self._script.nodes(cst.SimpleStatementLine):
            above = carried.pop(statement, [])
            node = statement.body[0]
            mine = {each for each in statement.body if each in self._classes or each in self._removed}
            needed = self._needed if mine & self._classes else ()
            left = _without(node, self._removed.get(node, set())) if len(statement.body) == 1 else node
            if left is None and not needed:
                comments = [*above, *_comments(statement)]
                following = self._following(statement)
                if not comments or following is not None:
                    edits[statement] = lambda _: cst.RemoveFromParent()
                    if following is not None and comments:
                        carried[following] = comments
                    continue
                left = node
            if mine or above:
                edits[statement] = _edit(left, needed, above)
        return edits

    def _following(self, statement: cst.SimpleStatementLine) -> cst.SimpleStatementLine | None:
        """Return the statement after an import, if it is a simple one, too; else None."""
        block = self._script.parent(statement)
        body = list(getattr(block, "body", ()))
        after = body[body.index(statement) + 1 :] if statement in body else []
        return after[0] if after and isinstance(after[0], cst.SimpleStatementLine) else None


def _edit(left: cst.BaseSmallStatement | None, needed: Sequence[str], above: Sequence[cst.EmptyLine]) -> Edit:
    def edit(updated: cst.SimpleStatementLine) -> cst.FlattenSentinel[cst.SimpleStatementLine]:
        leading = [*above, *updated.leading_lines]
        new = [cst.ensure_type(cst.parse_statement(each), cst.SimpleStatementLine) for each in needed]
        if left is None:
            new[-1] = new[-1].with_changes(trailing_whitespace=updated.trailing_whitespace)
        elif len(updated.body) == 1 and isinstance(left, cst.Import | cst.ImportFrom):
            new.insert(0, updated.with_changes(body=[left], leading_lines=[]))
        else:
            new.insert(0, updated.with_changes(leading_lines=[]))
        new[0] = new[0].with_changes(leading_lines=leading)
        return cst.FlattenSentinel(new)

    return edit


def _without(node: cst.BaseSmallStatement, removed: set[str]) -> cst.BaseSmallStatement | None:
    """Return an import without some of its names; None if none is left."""
    if not isinstance(node, cst.Import | cst.ImportFrom) or isinstance(node.names, cst.ImportStar):
        return node
    kept = [alias for alias in node.names if bound_name(alias) not in removed]
    if not kept:
        return None
    if len(kept) == len(node.names):
        return node
    in_parentheses = isinstance(node, cst.ImportFrom) and node.lpar is not None
    if kept[-1] is not node.names[-1]:
        last = node.names[-1].comma if in_parentheses else cst.MaybeSentinel.DEFAULT
        kept[-1] = kept[-1].with_changes(comma=last)
    return node.with_changes(names=kept)


def _comments(statement: cst.SimpleStatementLine) -> list[cst.EmptyLine]:
    """Return the comments above and beside an import, as lines."""
    above = list(statement.leading_lines) if any(line.comment for line in statement.leading_lines) else []
    beside = statement.trailing_whitespace.comment
    if beside is None or beside.value.startswith(_OF_A_TOOL):
        return above
    return [*above, cst.EmptyLine(comment=beside)]
