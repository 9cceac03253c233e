"""A role's name is enough: the SDK asks IAM for the ARN."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from estimators.local import LocalSageMaker


def test_the_sdk_finds_the_arn_of_any_role_by_its_name(platform: LocalSageMaker) -> None:
    import sagemaker

    account = platform.boto_session.client("sts").get_caller_identity()["Account"]
    for session in (platform.session, sagemaker.Session(platform.boto_session)):
        assert session.expand_role("SageMakerRole") == f"arn:aws:iam::{account}:role/SageMakerRole"
    names = [role["RoleName"] for role in platform.boto_session.client("iam").list_roles()["Roles"]]
    assert names.count("SageMakerRole") == 1


def test_a_role_that_was_deleted_is_not_there_until_it_is_created(platform: LocalSageMaker) -> None:
    iam = platform.boto_session.client("iam")
    iam.get_role(RoleName="mine")
    iam.delete_role(RoleName="mine")
    with pytest.raises(ClientError, match="NoSuchEntity"):
        iam.get_role(RoleName="mine")
    iam.create_role(RoleName="mine", AssumeRolePolicyDocument="{}")
    assert iam.get_role(RoleName="mine")["Role"]["RoleName"] == "mine"


def test_what_is_no_name_of_a_role_is_refused(platform: LocalSageMaker) -> None:
    with pytest.raises(ClientError) as refused:
        platform.boto_session.client("iam").get_role(RoleName="a role")
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] in (400, 404)
