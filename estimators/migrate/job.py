"""One job of a script: the edits that migrate it, notes on what changes, and the reasons why it stays."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from estimators.migrate.script import Edit, Script, Variable, within


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Note:
    """A finding at a line, and a remedy."""

    line: int
    """Line of the script before its migration, counted from 1."""
    is_open: bool
    """Whether a person must do something, because it could not be migrated."""
    found: str
    """The finding: why it can't stay, or what changes."""
    remedy: str
    """What to do."""

    def __str__(self) -> str:
        return f"{'to do' if self.is_open else 'note'}: {self.found}. {self.remedy}"


@dataclass(slots=True, kw_only=True, eq=False)
class ScriptJob:
    """A call that describes a job, with all that belongs to it. It is migrated as a whole, or not at all."""

    script: Script
    call: cst.Call
    local_name: str
    """Name of the Estimator in the migrated script."""
    edits: dict[cst.CSTNode, Edit] = field(default_factory=dict)
    replaced: set[cst.CSTNode] = field(default_factory=set)
    """Nodes that the migrated script does not have; imports for them alone are removed, too."""
    classes: list[cst.CSTNode] = field(default_factory=list)
    """Nodes that name V2's or V3's class, in place of which the Estimator is imported."""
    inputs: set[str] = field(default_factory=set)
    """Classes of the SDK that the migrated script needs, too: ``TrainingInput``, ``FileSystemInput``."""
    variables: set[Variable] = field(default_factory=set)
    """Variables of the job; another job that shares one can be migrated only together with this job."""
    notes: list[Note] = field(default_factory=list)
    """The changes, and the tasks that are left to a person."""
    blockers: list[Note] = field(default_factory=list)
    """Reasons why the job can't be migrated."""

    def edit(self, node: cst.CSTNode, edit: Edit) -> None:
        """Replace a node, after the edits that it has already."""
        before = self.edits.get(node)
        self.edits[node] = edit if before is None else lambda updated: edit(before(updated))

    def replace(self, node: cst.CSTNode) -> None:
        """Mark a node, and all nodes in it, as absent from the migrated script."""
        self.replaced |= within(node)

    def name_estimator(self, node: cst.CSTNode) -> None:
        """Replace the name of a class by the Estimator's."""
        self.edit(node, lambda _: cst.Name(self.local_name))
        self.replace(node)
        self.classes.append(node)

    def tell(self, node: cst.CSTNode, found: str, remedy: str, *, is_open: bool = False) -> None:
        """Note a change at a node; with `is_open`, a task for a person."""
        self.notes.append(Note(line=self.script.line(node), is_open=is_open, found=found, remedy=remedy))

    def block(self, node: cst.CSTNode, found: str, remedy: str) -> None:
        """Keep the job as it is, with a reason at a node."""
        note = Note(line=self.script.line(node), is_open=True, found=found, remedy=remedy)
        if note not in self.blockers:
            self.blockers.append(note)
