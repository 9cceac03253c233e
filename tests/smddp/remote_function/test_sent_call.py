from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from smddp.errors import RemoteFunctionError
from smddp.remote_function.sent_call import CALL_VARIABLE, SentCall


def test_the_request_vouches_for_the_arguments_and_the_result(tmp_path: Path) -> None:
    sent = SentCall.of("train:train", "safetensors", b"arguments")
    call = SentCall.read({CALL_VARIABLE: sent.to_text()})
    call.check_arguments(b"arguments")
    with pytest.raises(RemoteFunctionError, match="not those that were sent"):
        call.check_arguments(b"Arguments")

    (tmp_path / "hmac").write_text(sent.sign(b"result"))
    call.check_result(b"result", tmp_path / "hmac")
    with pytest.raises(RemoteFunctionError, match="not the one that the job has written"):
        call.check_result(b"Result", tmp_path / "hmac")
    with pytest.raises(RemoteFunctionError, match="no signature"):
        call.check_result(b"result", tmp_path / "gone")
    another = SentCall.of("train:train", "safetensors", b"arguments")
    with pytest.raises(RemoteFunctionError, match="not the one that the job has written"):
        another.check_result(b"result", tmp_path / "hmac")


def test_its_text_fits_a_variable_of_the_environment() -> None:
    assert len(SentCall.of("project.package.module:Trainer.train", "safetensors", b"").to_text()) < 512


@pytest.mark.parametrize(
    "change", [{"serializer": "pickle"}, {"digest": "0"}, {"result_key": None}, {"function": 1}, {"more": 1}]
)
def test_a_variable_that_describes_no_call_is_refused(change: dict[str, object]) -> None:
    described = asdict(SentCall.of("train:train", "safetensors", b"")) | change
    with pytest.raises(RemoteFunctionError, match=f"{CALL_VARIABLE} describes no call"):
        SentCall.read({CALL_VARIABLE: json.dumps(described)})
    with pytest.raises(RemoteFunctionError, match="is not set: this is no job of a remote function"):
        SentCall.read({})
