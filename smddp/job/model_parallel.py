"""The parameters of ``smdistributed.modelparallel`` (SMP v2), which a job has as the hyperparameter ``mp_parameters``.

AWS's ``torch.sagemaker`` reads them in AWS's images, and `smddp.Sharded.from_job` reads them here. Names and meanings:
docs.aws.amazon.com/sagemaker/latest/dg/distributed-model-parallel-v2-reference.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from smddp.job.near_names import near_name

MP_PARAMETERS = "mp_parameters"
"""The hyperparameter: a JSON object."""

SHARD_DEGREE = "hybrid_shard_degree"
"""The number of ranks that the weights are divided among; 0, the default, leaves it to the script."""

OTHER_DEGREES = ("tensor_parallel_degree", "context_parallel_degree", "expert_parallel_degree")
"""The degrees that divide layers, sequences and experts; 1, the default, divides nothing."""

_SWITCHES = ("sm_activation_offloading", "fsdp_cache_flush_warnings", "allow_empty_shards")
_NUMBERS = ("activation_loading_horizon", "random_seed")
NAMES = (SHARD_DEGREE, *OTHER_DEGREES, *_SWITCHES, *_NUMBERS)
"""All parameters of SMP v2."""


def faults(parameters: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each unknown parameter of SMP v2, and each value that it does not take, with the remedy."""
    for name, value in parameters.items():
        least = 0 if name == SHARD_DEGREE else 1
        if name not in NAMES:
            near = near_name(str(name), NAMES)
            remedy = f"It has {', '.join(NAMES)}." if near is None else f"Did you mean {near!r}?"
            yield f"SMP v2 has no parameter {name!r}", remedy
        elif name in _SWITCHES:
            if type(value) is not bool:
                yield f"{name} is {value!r}", "Give True or False."
        elif type(value) is not int:
            yield f"{name} is {value!r}", "Give a whole number."
        elif name not in _NUMBERS and value < least:
            yield f"{name} is {value}", f"Give at least {least}."


def degree_fault(parameters: Mapping[str, Any], ranks: int) -> tuple[str, str] | None:
    """Return why a number of ranks can't be divided by valid parameters' degrees, with the remedy; otherwise None."""
    degrees = {name: parameters[name] for name in (SHARD_DEGREE, *OTHER_DEGREES) if parameters.get(name)}
    shard, (tensor, context, _) = degrees.get(SHARD_DEGREE), map(degrees.get, OTHER_DEGREES)
    if shard and tensor:
        degrees[f"{SHARD_DEGREE} × {OTHER_DEGREES[0]}"] = shard * tensor
    for name, degree in degrees.items():
        if ranks % degree:
            return f"{name} is {degree}, and {ranks} ranks are no multiple of that", f"Give a divisor of {ranks}."
    if shard and context and context > shard:
        return f"{OTHER_DEGREES[1]} is {context}, more than {SHARD_DEGREE} ({shard})", f"Give at most {shard}."
    return None
