import configparser
import os
import subprocess
import sys

import pytest
from botocore.config import Config

from estimators.local.access import Access, bypassed_hosts
from estimators.local.api.signature import KeyPair
from estimators.local.serve import ENGINE_S3
from estimators.sdk import sessions

KEYS = KeyPair(access_key="AKEXAMPLE", secret_key="a secret")
ACCESS = Access(endpoint_url="http://127.0.0.1:1", s3_endpoint_url="http://127.0.0.1:2", keys=KEYS, region="eu-west-1")


def test_a_role_of_any_name_has_an_arn():
    session = sessions.session(ACCESS.boto_session(), default_bucket="jobs")
    assert sessions.role_arn("Team", session) == "arn:aws:iam::123456789012:role/Team"


@pytest.fixture
def hostile(monkeypatch, tmp_path):
    """A user whose environment and ~/.aws lead to real AWS."""
    config = tmp_path / "config"
    config.write_text(
        "[profile work]\nregion = ap-south-1\nendpoint_url = https://sagemaker.ap-south-1.amazonaws.com\n"
        "use_fips_endpoint = true\n[default]\nregion = ap-south-1\nuse_dualstack_endpoint = true\n"
    )
    for name, value in {
        "AWS_CONFIG_FILE": str(config),
        "AWS_PROFILE": "work",
        "AWS_ACCESS_KEY_ID": "AKREAL",
        "AWS_SECRET_ACCESS_KEY": "real",
        "AWS_SESSION_TOKEN": "real",
        "AWS_ENDPOINT_URL": "https://example.amazonaws.com",
        "AWS_ENDPOINT_URL_S3": "https://s3.amazonaws.com",
        "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true",
        "AWS_USE_FIPS_ENDPOINT": "true",
        "AWS_USE_DUALSTACK_ENDPOINT": "true",
        "AWS_DEFAULT_REGION": "ap-south-1",
        "HTTP_PROXY": "http://proxy.example:3128",
        "http_proxy": "http://proxy.example:3128",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("service", ["sagemaker", "logs", "sts", "iam", "s3", "sagemaker-runtime"])
def test_every_client_of_the_session_goes_to_the_platform(hostile, service):
    session = ACCESS.boto_session()
    expected = ACCESS.s3_endpoint_url if service == "s3" else ACCESS.endpoint_url
    for options in (
        {},
        {"region_name": "us-east-2"},
        {"endpoint_url": f"https://{service}.us-east-1.amazonaws.com"},
        {"config": Config(use_fips_endpoint=None, retries={"max_attempts": 1})},
    ):
        client = session.client(service, **options)
        assert client.meta.endpoint_url == expected
    assert session.client(service).meta.region_name == "eu-west-1" or service == "iam"


def test_resources_of_the_session_go_to_the_platform(hostile):
    assert ACCESS.boto_session().resource("s3").meta.client.meta.endpoint_url == ACCESS.s3_endpoint_url


def test_the_session_signs_with_the_platforms_keys_alone(hostile):
    credentials = ACCESS.boto_session().get_credentials()
    assert (credentials.access_key, credentials.secret_key, credentials.token) == ("AKEXAMPLE", "a secret", None)


def test_the_session_uses_no_proxy(hostile):
    requests = []
    client = ACCESS.boto_session().client("s3")
    client.meta.events.register("before-send", lambda request, **_: requests.append(request))
    url = client.generate_presigned_url("get_object", {"Bucket": "b", "Key": "k"})
    assert url.startswith("http://127.0.0.1:2/b/k?")
    with pytest.raises(Exception, match="Could not connect to the endpoint URL"):
        client.list_buckets()


@pytest.mark.slow
def test_another_program_reaches_the_platform_whatever_its_users_environment_says(hostile, tmp_path):
    ACCESS.write_files(tmp_path)
    script = """if True:
        import boto3
        for service in ("s3", "sagemaker"):
            client = boto3.client(service)
            credentials = boto3.DEFAULT_SESSION.get_credentials()
            print(client.meta.endpoint_url, client.meta.region_name, credentials.access_key, credentials.token or "-")
        place = {"Bucket": "b", "Key": "k"}
        print("X-Amz-Signature" in boto3.client("s3").generate_presigned_url("get_object", place))
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment = {**clean, **ACCESS.client_environment(tmp_path), "http_proxy": "http://proxy.example:3128"}
    output = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert output.stdout.splitlines() == [
        "http://127.0.0.1:2 eu-west-1 AKEXAMPLE -",
        "http://127.0.0.1:1 eu-west-1 AKEXAMPLE -",
        "True",
    ]


def test_proxies_are_bypassed_beside_those_that_the_user_bypasses(tmp_path):
    bypasses = bypassed_hosts({"no_proxy": "intranet.example, localhost", "NO_PROXY": "10.0.0.1,", "HOME": "/"})
    environment = ACCESS.client_environment(tmp_path, bypasses=bypasses)
    assert environment["no_proxy"] == "10.0.0.1,127.0.0.1,intranet.example,localhost"
    assert environment["NO_PROXY"] == environment["no_proxy"]


def test_the_files_hold_the_keys_for_programs_that_ask_for_a_profile(tmp_path):
    ACCESS.write_files(tmp_path)
    credentials = configparser.ConfigParser()
    credentials.read(ACCESS.client_environment(tmp_path)["AWS_SHARED_CREDENTIALS_FILE"])
    assert credentials["default"]["aws_access_key_id"] == KEYS.access_key
    assert credentials["default"]["aws_secret_access_key"] == KEYS.secret_key


def test_the_sagemaker_sdk_finds_its_bucket_and_sends_no_telemetry(tmp_path, monkeypatch):
    ACCESS.write_files(tmp_path)
    for name, value in ACCESS.sdk_environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    from sagemaker.config import load_sagemaker_config, validate_sagemaker_config

    config = load_sagemaker_config()
    validate_sagemaker_config(config)
    modules = config["SageMaker"]["PythonSDK"]["Modules"]
    assert modules == {"TelemetryOptOut": True, "Session": {"DefaultS3Bucket": "sagemaker-eu-west-1-123456789012"}}


def test_the_engine_waits_for_the_join_of_a_large_upload_and_reads_much_at_a_time(hostile):
    config = ACCESS.boto_session().client("s3", config=ENGINE_S3).meta.config
    assert (config.max_pool_connections, config.read_timeout, config.retries["mode"]) == (64, 120, "standard")
    assert config.proxies == {}  # what the session says of every client stays
