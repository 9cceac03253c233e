"""What the local platform does with each member of a CreateProcessingJob; docs/reference/local-platform.md lists it."""

from __future__ import annotations

from collections.abc import Mapping

from estimators.local.engine.members import Fate, Rule

_H, _R, _NO = Fate.HONOURED, Fate.RECORDED, Fate.REFUSED

RULES: Mapping[str, Rule] = {
    "ProcessingJobName": Rule(fate=_H),
    "ProcessingInputs": Rule(fate=_H),
    "ProcessingInputs.AppManaged": Rule(fate=_H, note="nothing is copied: the program does it"),
    "ProcessingInputs.S3Input.LocalPath": Rule(fate=_H, note="below `/opt/ml/processing`, and no other input's"),
    "ProcessingInputs.S3Input.S3InputMode": Rule(fate=_H, note="File; refused: Pipe"),
    "ProcessingInputs.S3Input.S3CompressionType": Rule(fate=_H, note="None; refused: Gzip, which needs Pipe"),
    "ProcessingInputs.DatasetDefinition": Rule(fate=_NO),
    "ProcessingOutputConfig": Rule(fate=_H),
    "ProcessingOutputConfig.Outputs.S3Output.LocalPath": Rule(fate=_H, note="below `/opt/ml/processing`"),
    "ProcessingOutputConfig.Outputs.S3Output.S3UploadMode": Rule(
        fate=_H, note="EndOfJob uploads nothing of a job that fails"
    ),
    "ProcessingOutputConfig.Outputs.FeatureStoreOutput": Rule(fate=_NO),
    "ProcessingOutputConfig.Outputs.AppManaged": Rule(fate=_H, note="nothing is copied: the program does it"),
    "ProcessingOutputConfig.KmsKeyId": Rule(fate=_R, note="nothing is encrypted"),
    "ProcessingResources": Rule(fate=_H),
    "ProcessingResources.ClusterConfig.InstanceType": Rule(fate=_H, note="as what the program is told"),
    "ProcessingResources.ClusterConfig.VolumeSizeInGB": Rule(fate=_R, said=False, note="the disk is this machine's"),
    "ProcessingResources.ClusterConfig.VolumeKmsKeyId": Rule(fate=_R, note="nothing is encrypted"),
    "ProcessingResources.ClusterConfig.InstancePreferences": Rule(fate=_NO),
    "ProcessingResources.ClusterConfig.SelectedInstanceType": Rule(fate=_R),
    "ProcessingResources.ClusterConfig.SelectedInstanceCount": Rule(fate=_R),
    "StoppingCondition": Rule(fate=_H),
    "AppSpecification": Rule(fate=_H),
    "AppSpecification.ImageUri": Rule(
        fate=_H, note="with `executor=Docker(…)`; else the program is run with this Python"
    ),
    "AppSpecification.ContainerEntrypoint": Rule(fate=_H, note="needed without `executor=Docker(…)`"),
    "Environment": Rule(fate=_H),
    "NetworkConfig": Rule(fate=_H),
    "NetworkConfig.EnableInterContainerTrafficEncryption": Rule(fate=_R, note="nothing leaves this machine"),
    "NetworkConfig.EnableNetworkIsolation": Rule(
        fate=_H, note="with `executor=Docker(…)`; else a line in the log says that it is not done"
    ),
    "NetworkConfig.VpcConfig": Rule(fate=_R, note="hosts are in no VPC"),
    "RoleArn": Rule(fate=_R, said=False, note="no role is assumed"),
    "Tags": Rule(fate=_H),
    "ExperimentConfig": Rule(fate=_H, note="each job has a trial component"),
}
