"""Check a job's hyperparameters by what its script reads: a dataclass by ``smddp.run(main)``, or options by argparse.

The job's own reader and argparse judge the values, so that what passes here passes in the job. A script that reads
them otherwise, by sys.argv, Hydra, click or SM_HP_*, gives no problem.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from estimators.errors import Problem, error, warning
from smddp.container.contract import OWN_HYPERPARAMETERS, PLATFORM_PREFIX
from smddp.container.environment import user_arguments
from smddp.script_syntax import ConfigValues, Executed, OptionParser


def check(
    config: ConfigValues, nodes: Sequence[Executed], texts: Mapping[str, str], *, own_image: bool
) -> Iterator[Problem]:
    """Yield what the script would refuse.

    `nodes` are those that every run of the script executes. `texts` has the hyperparameters as the request does.
    `own_image` means that another program than the toolkit may start the script, and with other options.
    """
    if (fault := config.fault) is not None:
        yield error(fault.parameter, fault.found, fault.remedy)
    parser = OptionParser.of(nodes)
    if parser is None:
        return
    given = {name: json.loads(text) for name, text in texts.items() if _is_users(name)}
    for refused in parser.faults(user_arguments(given)):
        remedy = (
            f"The script has {', '.join(parser.names)}; each hyperparameter reaches it as such an option with a value."
        )
        yield (warning if own_image else error)("hyperparameters", f"argparse refuses them: {refused}", remedy)


def _is_users(name: str) -> bool:
    return not name.startswith(PLATFORM_PREFIX) and name not in OWN_HYPERPARAMETERS
