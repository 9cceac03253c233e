"""The facts of a job's script, read once from its syntax for all checks: nothing of it is imported or run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from estimators.checks.script import channel_names, hyperparameters, portability
from estimators.errors import Problem
from smddp.job.hyperparameters import decode
from smddp.script_syntax import ConfigValues, Executed, Modules, executed


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFacts:
    """A script, and how it reads the hyperparameters of its job."""

    modules: Modules
    """The script and its modules."""
    nodes: Sequence[Executed]
    """What every run of the script executes."""
    texts: Mapping[str, str]
    """The job's hyperparameters, as text in the request."""
    config: ConfigValues
    """What the script reads from them into its dataclass."""

    @classmethod
    def of(cls, modules: Modules, texts: Mapping[str, str]) -> ScriptFacts:
        """Read the facts; `texts` has the job's hyperparameters as the request does."""
        return cls(modules=modules, nodes=executed(modules), texts=texts, config=_config(modules, texts))

    def check(
        self, *, channels: Collection[str], has_gpus: bool, shares_checkpoints: bool, own_image: bool
    ) -> Iterator[Problem]:
        """Yield what the script would refuse, and what works on this machine only.

        `channels`, `has_gpus` and `shares_checkpoints` tell of the job's data, of its hosts, and whether they save to
        one place. `own_image` means an image of the user's, not of AWS.
        """
        yield from hyperparameters.check(self.config, self.nodes, self.texts, own_image=own_image)
        yield from channel_names.check(self.nodes, channels)
        yield from portability.check(self.modules, self.nodes, has_gpus=has_gpus, shares_checkpoints=shares_checkpoints)


def _config(modules: Modules, texts: Mapping[str, str]) -> ConfigValues:
    in_parts = [name.partition(".")[0] for name in texts if "." in name]
    return ConfigValues.of(modules, in_parts=in_parts, read=lambda made: decode(made, texts))
