"""Names that both SageMaker SDKs have in different modules: imported once, from the installed SDK.

Names of only one SDK are imported in ``v2`` and ``v3``, where they are used.
"""

from __future__ import annotations

from estimators.errors import EstimatorError
from estimators.sdk.installed import installed
from estimators.sdk.quiet import program_kept, quiet_configuration_logger, without_maintenance_notice

quiet_configuration_logger()
try:
    with without_maintenance_notice(), program_kept():
        if installed() == "V2":
            import sagemaker.experiments  # noqa: F401 - PyTorch.fit would load it later, and set up the root logger
            from sagemaker import fw_utils, git_utils, image_uris, instance_types_gpu_info
            from sagemaker.config import config_schema, load_sagemaker_config
            from sagemaker.local.utils import check_for_studio
            from sagemaker.session import Session
            from sagemaker.utils import format_tags, get_config_value
            from sagemaker.workflow import is_pipeline_variable
            from sagemaker.workflow.pipeline_context import PipelineSession
        else:
            from sagemaker.core import fw_utils, git_utils, image_uris, instance_types_gpu_info
            from sagemaker.core.common_utils import format_tags, get_config_value
            from sagemaker.core.config import config_schema, load_sagemaker_config
            from sagemaker.core.helper.session_helper import Session
            from sagemaker.core.local.utils import check_for_studio
            from sagemaker.core.workflow import is_pipeline_variable
            from sagemaker.core.workflow.pipeline_context import PipelineSession
except ImportError as fault:
    if (fault.name or "").partition(".")[0] != "sagemaker":
        raise
    raise EstimatorError(
        f"The installed SageMaker Python SDK {installed()} lacks what is needed ({fault}). Do: pip install --upgrade "
        "'smddp[sagemaker]'"
    ) from fault

__all__ = [
    "PipelineSession",
    "Session",
    "check_for_studio",
    "config_schema",
    "format_tags",
    "fw_utils",
    "get_config_value",
    "git_utils",
    "image_uris",
    "instance_types_gpu_info",
    "is_pipeline_variable",
    "load_sagemaker_config",
]
