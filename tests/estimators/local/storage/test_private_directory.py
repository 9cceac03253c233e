import stat

from estimators.local.storage.private_directory import make_private


def test_makes_a_directory_that_is_closed_to_others(tmp_path):
    make_private(tmp_path / "made" / "here")
    assert stat.S_IMODE((tmp_path / "made" / "here").stat().st_mode) == 0o700


def test_closes_one_that_was_open_and_says_so(tmp_path, caplog):
    tmp_path.chmod(0o755)
    make_private(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
    assert f"closed {tmp_path} to other users: its mode was 755" in caplog.text
