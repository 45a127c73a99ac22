"""Folders that are refused, and links in folders."""

from types import SimpleNamespace

import pytest

pytest.importorskip("msgspec")

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.pipeline.pipeline_artifact import MANIFEST
from tvm_sched_serve import served_text
from tvm_sched_serve.repository import PIPELINE_FILE, LoadOptions, Repository, without_links


def test_a_pipeline_is_sent_to_the_command_that_serves_it(tmp_path):
    assert PIPELINE_FILE == MANIFEST
    for name in (MANIFEST, "stage0.so"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match="is a pipeline, which another command serves: tvm-sched gateway"):
        Repository(tmp_path)


def test_a_stage_of_a_language_model_is_sent_to_the_command_that_takes_it(monkeypatch, tmp_path):
    for about in ({"version": 2, "stages": 2, "stage": 0, "context": 8}, {"version": 2, "stages": 2, "stage": 1}):
        module = SimpleNamespace(info=lambda about=about: {"generation": about}, parameters=list)
        monkeypatch.setattr(served_text, "load", lambda file, threads, verify, module=module: module)
        with pytest.raises(InputError, match=r"pipe.so: .*pipelines .* are not served: tvm-sched generate takes them"):
            served_text.load_served(tmp_path / "pipe.so", "pipe", "1")


def test_a_folder_without_artifacts_is_told_what_is_expected(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(InputError, match=r"holds no artifact; expected NAME.so or NAME/VERSION/model.so"):
        Repository(tmp_path)
    with pytest.raises(InputError, match="there is no such artifact or folder"):
        Repository(tmp_path / "missing")


def volume(folder, generation="..2026_01"):
    """A volume as Kubernetes makes it of the keys `m.so` and `n/1/model.so`."""
    made = folder / generation
    (made / "n" / "1").mkdir(parents=True)
    for name in ("m.so", "m.safetensors", "n/1/model.so"):
        (made / name).touch()
    (folder / "..new").symlink_to(generation)
    (folder / "..new").replace(folder / "..data")
    for name in ("m.so", "m.safetensors", "n"):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    return made


def opened(repository):
    return {name: without_links(file) for name in repository.names() for file in repository.files(name).values()}


def test_links_within_the_volume_are_followed_to_one_generation(tmp_path):
    """Also if the volume itself, or a folder of it, is given as a link; and after its links have been swapped."""
    made = volume(tmp_path / "volume")
    link = tmp_path / "link"
    link.symlink_to("volume/..data")
    repositories = [Repository(tmp_path / "volume"), Repository(link), Repository(tmp_path / "volume" / "..data")]
    for repository in repositories:
        assert opened(repository) == {"m": made / "m.so", "n": made / "n" / "1" / "model.so"}
    made = volume(tmp_path / "volume", "..2026_02")
    for repository in repositories:
        assert opened(repository) == {"m": made / "m.so", "n": made / "n" / "1" / "model.so"}


def test_links_out_of_the_repository_are_followed_unless_an_option_says_no(tmp_path):
    made = volume(tmp_path / "volume")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "m.so").symlink_to(tmp_path / "volume" / "m.so")
    with pytest.raises(
        InputError, match=r"links/m.so leads out of it, to .*2026_01/m.so, and --no-follow-links was given"
    ):
        Repository(tmp_path / "links", load=LoadOptions(follow_links=False))
    assert opened(Repository(tmp_path / "links")) == {"m": made / "m.so"}
    (tmp_path / "volume" / "..2026_01" / "m.so").unlink()
    with pytest.raises(InputError, match=r"links/m.so leads nowhere"):
        Repository(tmp_path / "links")


def test_parameters_beside_a_link_only_are_found(tmp_path):
    """As in the cache of a hub, where the names of the files are those of the links."""
    (tmp_path / "blobs").mkdir()
    for name in ("m.so", "m.safetensors"):
        (tmp_path / "blobs" / f"of-{name[2:]}").touch()
        (tmp_path / name).symlink_to(f"blobs/of-{name[2:]}")
    assert opened(Repository(tmp_path)) == {"m": tmp_path / "m.so"}
