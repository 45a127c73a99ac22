"""The end of a command whose output, or something else, failed."""

import io
import sys

import pytest

from tvm_sched_runtime.standard_output import written_out


def failing(error):
    raise error


def test_an_error_of_a_connection_is_not_one_of_standard_output(capsys):
    assert written_out(lambda: failing(ConnectionResetError(104, "Connection reset by peer"))) == 1
    assert capsys.readouterr() == ("", "error: Connection reset by peer\n")
    with pytest.raises(FileNotFoundError):
        written_out(lambda: failing(FileNotFoundError(2, "No such file or directory", "a")))


@pytest.mark.parametrize(
    ("lines", "where"), [(1, "standard output: "), (10_000, "")], ids=["at the end", "within the command"]
)
def test_a_full_disk_is_told(capsys, monkeypatch, lines, where):
    """Also where Python has dropped what it could not write, so that nothing tells which file it was for."""
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert written_out(lambda: len([print("line") for _ in range(lines)]) * 0) == 1
        monkeypatch.undo()  # and what is left can be dropped
    assert capsys.readouterr().err == f"error: {where}No space left on device\n"


def test_a_command_that_ends_by_itself_keeps_its_status(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert written_out(lambda: 3) == 3
    with pytest.raises(SystemExit):
        written_out(lambda: sys.exit(4))
