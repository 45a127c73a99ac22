"""Folders that are refused."""

import pytest

pytest.importorskip("msgspec")

from tvm_sched.errors import InputError
from tvm_sched.pipeline.pipeline_artifact import MANIFEST
from tvm_sched_serve.repository import PIPELINE_FILE, Repository


def test_a_pipeline_is_sent_to_the_command_that_serves_it(tmp_path):
    assert PIPELINE_FILE == MANIFEST
    for name in (MANIFEST, "stage0.so"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match="is a pipeline, which another command serves: tvm-sched gateway"):
        Repository(tmp_path)


def test_a_folder_without_artifacts_is_told_what_is_expected(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(InputError, match=r"holds no artifact; expected NAME.so or NAME/VERSION/model.so"):
        Repository(tmp_path)
    with pytest.raises(InputError, match="there is no such artifact or folder"):
        Repository(tmp_path / "missing")
