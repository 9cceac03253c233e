"""A job that is waited for in a notebook: a real kernel, whose messages are read as a browser would."""

from __future__ import annotations

import os
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.estimators.job_handle.test_shown import PROGRAM, plain

SLOWER = "from estimators.job_handle import notebook_line; notebook_line._REFRESH_SECONDS = 0.1\n"


def shown_by(cell: str, directory: Path, **environ: str) -> list[tuple[str, dict[str, Any]]]:
    """Run a cell; return its outputs, in the order in which they came."""
    manager = KernelManager(
        transport="ipc", ip=str(directory / "kernel"), connection_file=str(directory / "kernel.json")
    )
    manager.start_kernel(env={**os.environ, **environ})
    client: BlockingKernelClient = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        request = client.execute(cell)
        outputs = []
        while True:
            message = client.get_iopub_msg(timeout=60)
            parent = message["parent_header"].get("msg_id")
            if parent != request and message["msg_type"] in ("status", "iopub_welcome"):
                continue  # of what the client asked while the kernel was slow to start
            assert parent == request, "it would be shown below another cell"
            outputs.append((message["msg_type"], message["content"]))
            if outputs[-1] == ("status", {"execution_state": "idle"}):
                return outputs
    except Empty:
        raise AssertionError("the cell does not end") from None
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("progress", ["1", "0"])
def test_a_line_above_the_log_is_written_anew_and_stays(tmp_path: Path, progress: str) -> None:
    outputs = shown_by(SLOWER + PROGRAM.replace("LOOKS", "40"), tmp_path, SMDDP_PROGRESS=progress)
    assert not [content for kind, content in outputs if kind == "error"]
    log = "".join(content["text"] for kind, content in outputs if kind == "stream")
    steps = [plain(line).split()[2] for line in log.splitlines() if "step=" in line]
    assert steps == [f"step={number}" for number in range(1, 41)]
    lines = [(kind, content) for kind, content in outputs if "display" in kind]
    if progress == "0":
        assert lines == []
        return
    assert [kind for kind, _ in lines[:2]] == ["display_data", "update_display_data"]
    assert {kind for kind, _ in lines[1:]} == {"update_display_data"}
    assert len({content["transient"]["display_id"] for _, content in lines}) == 1
    training = max((content["data"]["text/plain"] for _, content in lines), key=len)
    for part in ("Training", "epoch ", "/4", "step ", "loss ", "812 samples/s", "ETA ", "█", "▁"):
        assert part in training
    last = lines[-1][1]["data"]
    assert last["text/plain"].startswith("Completed ")
    assert last["text/html"] == f"<pre>{last['text/plain']}</pre>"
