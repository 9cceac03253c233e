"""One job of a script: what would be edited to migrate it, what changes with that, and what keeps it as it is."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from estimators.migrate.note import Note
from estimators.migrate.script import Edit, Script, Variable, within


@dataclass(slots=True, kw_only=True, eq=False)
class ScriptJob:
    """A call that describes a job, with all that belongs to it. It is migrated as a whole, or stays as it is."""

    script: Script
    call: cst.Call
    local_name: str
    """What the script is to call the Estimator."""
    edits: dict[cst.CSTNode, Edit] = field(default_factory=dict)
    replaced: set[cst.CSTNode] = field(default_factory=set)
    """The nodes that the migrated script does not have: what is imported for them alone goes, too."""
    classes: list[cst.CSTNode] = field(default_factory=list)
    """The names of V2's or V3's class for which the Estimator is to be imported."""
    inputs: set[str] = field(default_factory=set)
    """Of the SDK, what the migrated script needs beside: ``TrainingInput``, ``FileSystemInput``."""
    variables: set[Variable] = field(default_factory=set)
    """The variables that it shares with other jobs, which can't be migrated without it."""
    notes: list[Note] = field(default_factory=list)
    """What changes, and what is still to do once the job is migrated."""
    blockers: list[Note] = field(default_factory=list)
    """Why it can't be migrated."""

    def edit(self, node: cst.CSTNode, edit: Edit) -> None:
        """Replace a node; after what others make of it."""
        before = self.edits.get(node)
        self.edits[node] = edit if before is None else lambda updated: edit(before(updated))

    def replace(self, node: cst.CSTNode) -> None:
        """Note that a node is not in the migrated script, with all that stands in it."""
        self.replaced |= within(node)

    def name_estimator(self, node: cst.CSTNode) -> None:
        """Replace the name of a class by that of the Estimator."""
        self.edit(node, lambda _: cst.Name(self.local_name))
        self.replace(node)
        self.classes.append(node)

    def tell(self, node: cst.CSTNode, found: str, remedy: str, *, is_open: bool = False) -> None:
        """Say what changes at a node; or, if it is open, what a person must do."""
        self.notes.append(Note(line=self.script.line(node), is_open=is_open, found=found, remedy=remedy))

    def block(self, node: cst.CSTNode, found: str, remedy: str) -> None:
        """Keep the job as it is, because of a node."""
        note = Note(line=self.script.line(node), is_open=True, found=found, remedy=remedy)
        if note not in self.blockers:
            self.blockers.append(note)
