"""What the local platform does with each member of a CreateProcessingJob; docs/reference/local-platform.md lists it."""

from __future__ import annotations

from collections.abc import Mapping

from estimators.local.engine.supported_fields import Rule, Support

_H, _R, _NO = Support.HONOURED, Support.RECORDED, Support.REFUSED

RULES: Mapping[str, Rule] = {
    "ProcessingJobName": Rule(support=_H),
    "ProcessingInputs": Rule(support=_H),
    "ProcessingInputs.AppManaged": Rule(support=_H, note="nothing is copied: the program does it"),
    "ProcessingInputs.S3Input.LocalPath": Rule(support=_H, note="below `/opt/ml/processing`, and no other input's"),
    "ProcessingInputs.S3Input.S3InputMode": Rule(support=_H, note="File; refused: Pipe"),
    "ProcessingInputs.S3Input.S3CompressionType": Rule(support=_H, note="None; refused: Gzip, which needs Pipe"),
    "ProcessingInputs.DatasetDefinition": Rule(support=_NO),
    "ProcessingOutputConfig": Rule(support=_H),
    "ProcessingOutputConfig.Outputs.S3Output.LocalPath": Rule(support=_H, note="below `/opt/ml/processing`"),
    "ProcessingOutputConfig.Outputs.S3Output.S3UploadMode": Rule(
        support=_H, note="EndOfJob uploads nothing of a job that fails"
    ),
    "ProcessingOutputConfig.Outputs.FeatureStoreOutput": Rule(support=_NO),
    "ProcessingOutputConfig.Outputs.AppManaged": Rule(support=_H, note="nothing is copied: the program does it"),
    "ProcessingOutputConfig.KmsKeyId": Rule(support=_R, note="nothing is encrypted"),
    "ProcessingResources": Rule(support=_H),
    "ProcessingResources.ClusterConfig.InstanceType": Rule(support=_H, note="as what the program is told"),
    "ProcessingResources.ClusterConfig.VolumeSizeInGB": Rule(support=_R, said=False, note="the disk is this machine's"),
    "ProcessingResources.ClusterConfig.VolumeKmsKeyId": Rule(support=_R, note="nothing is encrypted"),
    "ProcessingResources.ClusterConfig.InstancePreferences": Rule(support=_NO),
    "ProcessingResources.ClusterConfig.SelectedInstanceType": Rule(support=_R),
    "ProcessingResources.ClusterConfig.SelectedInstanceCount": Rule(support=_R),
    "StoppingCondition": Rule(support=_H),
    "AppSpecification": Rule(support=_H),
    "AppSpecification.ImageUri": Rule(
        support=_H, note="with `executor=Docker(…)`; else the program is run with this Python"
    ),
    "AppSpecification.ContainerEntrypoint": Rule(support=_H, note="needed without `executor=Docker(…)`"),
    "Environment": Rule(support=_H),
    "NetworkConfig": Rule(support=_H),
    "NetworkConfig.EnableInterContainerTrafficEncryption": Rule(support=_R, note="nothing leaves this machine"),
    "NetworkConfig.EnableNetworkIsolation": Rule(
        support=_H, note="with `executor=Docker(…)`; else a line in the log says that it is not done"
    ),
    "NetworkConfig.VpcConfig": Rule(support=_R, note="hosts are in no VPC"),
    "RoleArn": Rule(support=_R, said=False, note="no role is assumed"),
    "Tags": Rule(support=_H),
    "ExperimentConfig": Rule(support=_H, note="each job has a trial component"),
}
