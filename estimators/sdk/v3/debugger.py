"""SageMaker Debugger and its profiler in the request: rules, the hook in the script, and their output."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from sagemaker.core.debugger import (
    DebuggerHookConfig,
    ProfilerConfig,
    ProfilerRule,
    Rule,
    get_default_profiler_processing_job,
    get_rule_container_image_uri,
)
from sagemaker.core.fw_utils import DEBUGGER_UNSUPPORTED_REGIONS, PROFILER_UNSUPPORTED_REGIONS

from estimators.sdk.v3.parameters import Parameters

_DEFAULT_IMAGE = "DEFAULT_RULE_EVALUATOR_IMAGE"
_DETAILED = "DetailedProfilerProcessingJobConfig"
"""Prefix of the profiler rules that run on their own instances."""


def debugger_members(
    parameters: Parameters, *, job_name: str, region: str, output_path: str, upload: Callable[[str, str], str]
) -> dict[str, Any]:
    """Return the request's members for Debugger, its TensorBoard output, and the profiler; `parameters` stay unchanged.

    `upload` takes the path and name of a user's own rule, and returns the S3 URI of its source. Raise RuntimeError if
    ``rules`` contains something else or contradicts the profiler's settings, and ValueError if the region has no
    Debugger.
    """
    rules = [_complete(rule, region, upload) for rule in copy.deepcopy(list(parameters.rules or ()))]
    debugger_rules = [rule for rule in rules if isinstance(rule, Rule)]
    for rule in debugger_rules:
        rule.prepare_actions(job_name)
    members: dict[str, Any] = {
        "DebugRuleConfigurations": [rule.to_debugger_rule_config_dict() for rule in debugger_rules],
        "DebugHookConfig": _hook(parameters, debugger_rules, region, output_path),
        "TensorBoardOutputConfig": _tensorboard(parameters.tensorboard_output_config),
        **_profiler(
            parameters, [rule for rule in rules if isinstance(rule, ProfilerRule)], region, output_path, upload
        ),
    }
    return {name: value for name, value in members.items() if value}


def _complete(rule: Any, region: str, upload: Callable[[str, str], str]) -> Any:
    """Fill in a rule's image, and the S3 URI of its source."""
    if not isinstance(rule, Rule | ProfilerRule):
        raise RuntimeError("Rules list can only contain sagemaker.debugger.Rule and sagemaker.debugger.ProfilerRule")
    if rule.image_uri == _DEFAULT_IMAGE:
        rule.image_uri = get_rule_container_image_uri(rule.name, region)
        if not rule.name.startswith(_DETAILED):
            rule.instance_type = rule.volume_size_in_gb = None
    source = (rule.rule_parameters or {}).get("source_s3_uri")
    if source is not None and not source.startswith("s3://"):
        rule.rule_parameters["source_s3_uri"] = upload(source, rule.name)
    return rule


def _hook(parameters: Parameters, rules: Sequence[Any], region: str, output_path: str) -> dict[str, Any] | None:
    hook: Any = {} if parameters.debugger_hook_config is True else parameters.debugger_hook_config
    if region.lower() in DEBUGGER_UNSUPPORTED_REGIONS:
        if hook or (rules and hook is None):
            raise ValueError("Current region does not support debugger but debugger hook config is set!")
        return None
    # The hook does not work together with checkpoints that SageMaker copies.
    if hook is False or (parameters.checkpoint_s3_uri and parameters.checkpoint_local_path):
        return None
    if hook is None or hook == {}:
        hook = DebuggerHookConfig()
    collections = [*(each for rule in rules for each in rule.collection_configs), *(hook.collection_configs or ())]
    members = {
        "S3OutputPath": hook.s3_output_path or output_path,
        "LocalPath": hook.container_local_output_path,
        "HookParameters": hook.hook_parameters,
        "CollectionConfigurations": [
            _without_none({"CollectionName": each.name, "CollectionParameters": each.parameters})
            for each in dict.fromkeys(collections)
        ],
    }
    return _without_none(members)


def _tensorboard(config: Any) -> dict[str, Any] | None:
    if not config:
        return None
    return _without_none({"S3OutputPath": config.s3_output_path, "LocalPath": config.container_local_output_path})


def _profiler(
    parameters: Parameters,
    rules: list[Any],
    region: str,
    output_path: str,
    upload: Callable[[str, str], str],
) -> dict[str, Any]:
    config = copy.copy(parameters.profiler_config)
    is_supported = region.lower() not in PROFILER_UNSUPPORTED_REGIONS
    on_trainium = str(parameters.instance_type).startswith(("ml.trn", "ml_trn"))
    if parameters.disable_profiler or not is_supported or on_trainium:
        if config and not config.disable_profiler:
            raise RuntimeError("profiler_config.disable_profiler cannot be False when disable_profiler is True.")
        if rules:
            raise RuntimeError("ProfilerRule cannot be set when disable_profiler is True.")
        config = config or ProfilerConfig(disable_profiler=True)
    else:
        config = config or ProfilerConfig()
        if config.profile_params and not rules and parameters.rules != []:
            detailed = get_default_profiler_processing_job(
                instance_type=config.profile_params.instanceType,
                volume_size_in_gb=config.profile_params.volumeSizeInGB,
            )
            rules = [_complete(detailed, region, upload)]
    profiled = config.profile_params or config.framework_profile_params
    members = {
        "S3OutputPath": (config.s3_output_path or output_path) if config.disable_profiler is False else None,
        "DisableProfiler": config.disable_profiler,
        "ProfilingIntervalInMilliseconds": config.system_monitor_interval_millis,
        "ProfilingParameters": profiled.profiling_parameters if profiled is not None else None,
    }
    return {
        "ProfilerRuleConfigurations": [rule.to_profiler_rule_config_dict() for rule in rules],
        "ProfilerConfig": _without_none(members),
    }


def _without_none(members: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}
