"""Whether namespaces can be had: where they are barred it is said why, and what may pass is not taken for that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from estimators.local.executors import HostStartError, supervised_process, why_no_namespaces


@pytest.mark.namespaces
def test_they_can_be_had_here() -> None:
    assert why_no_namespaces() is None
    assert why_no_namespaces(private_network=True) is None


ANSWERS = """
from estimators.local.executors import why_no_namespaces
print(why_no_namespaces(), why_no_namespaces(private_network=True), sep="|")
"""
BARRED = "unshare: No space left on device"


@pytest.mark.namespaces
@pytest.mark.parametrize(("limit", "answers"), [("user", f"{BARRED}|{BARRED}"), ("net", f"None|{BARRED}")])
def test_what_is_barred_is_said(limit: str, answers: str) -> None:
    # The limit of a user namespace of the test's own: nothing in it may make a further one.
    run = subprocess.run(
        [
            *("unshare", "--user", "--map-root-user", "sh", "-ec"),
            f'echo 0 > /proc/sys/user/max_{limit}_namespaces; exec "$@"',
            *("sh", sys.executable, "-c", ANSWERS),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert run.stdout.strip() == answers, run.stderr


@pytest.mark.namespaces
def test_a_machine_under_load_bars_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = tmp_path / "host_supervisor.py"
    real = Path(supervised_process.SUPERVISOR).read_text()
    supervisor.write_text(real.replace("def _call(", f"{OUT_OF_MEMORY}\n\ndef _call_really("))
    monkeypatch.setattr(supervised_process, "SUPERVISOR", str(supervisor))
    with pytest.raises(HostStartError, match="could not be started: unshare: Cannot allocate memory"):
        why_no_namespaces()


OUT_OF_MEMORY = """
def _call(name: str, *arguments: int | bytes) -> None:
    if name == "unshare":
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), name)
    _call_really(name, *arguments)
"""
