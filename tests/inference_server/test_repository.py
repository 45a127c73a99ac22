"""Folders that are refused."""

from types import SimpleNamespace

import pytest

pytest.importorskip("msgspec")

from tvm_sched.errors import InputError
from tvm_sched.pipeline.pipeline_artifact import MANIFEST
from tvm_sched_serve import served_text
from tvm_sched_serve.repository import PIPELINE_FILE, Repository


def test_a_pipeline_is_sent_to_the_command_that_serves_it(tmp_path):
    assert PIPELINE_FILE == MANIFEST
    for name in (MANIFEST, "stage0.so"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match="is a pipeline, which another command serves: tvm-sched gateway"):
        Repository(tmp_path)


def test_a_stage_of_a_language_model_is_sent_to_the_command_that_takes_it(monkeypatch, tmp_path):
    for about in ({"version": 2, "stages": 2, "stage": 0, "context": 8}, {"version": 2, "stages": 2, "stage": 1}):
        module = SimpleNamespace(info=lambda about=about: {"generation": about}, parameters=list)
        monkeypatch.setattr(served_text, "load", lambda file, threads, module=module: module)
        with pytest.raises(InputError, match=r"pipe.so: .*pipelines .* are not served: tvm-sched generate takes them"):
            served_text.load_served(tmp_path / "pipe.so", "pipe", "1")


def test_a_folder_without_artifacts_is_told_what_is_expected(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(InputError, match=r"holds no artifact; expected NAME.so or NAME/VERSION/model.so"):
        Repository(tmp_path)
    with pytest.raises(InputError, match="there is no such artifact or folder"):
        Repository(tmp_path / "missing")
