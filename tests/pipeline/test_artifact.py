"""Pipelines written to a folder: loaded whole or by stage they compute the same; damage is told."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from small_pipeline import batches, compile_layers

from onnx_text import onnx_model
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.pipeline import load, load_manifest, load_stage
from tvm_sched_runtime.pipeline import pipeline_artifact as artifact
from tvm_sched_runtime.pipeline.pipeline_artifact import MANIFEST

pytestmark = pytest.mark.filterwarnings("ignore::tvm_sched_runtime.runtime.MachineWarning")


@pytest.fixture(scope="module")
def compiled():
    return compile_layers()


@pytest.fixture(scope="module")
def exported(compiled, tmp_path_factory):
    return compiled.export(tmp_path_factory.mktemp("artifacts") / "layers.pipeline")


@pytest.fixture
def copy(exported, tmp_path):
    return shutil.copytree(exported, tmp_path / "copy.pipeline")


def assert_same(some, others):
    for one, other in zip(some, others, strict=True):
        for a, b in zip(one.value(), other.value(), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_a_loaded_pipeline_computes_the_same(compiled, exported):
    loaded = load(exported)
    assert loaded.plan == compiled.plan
    assert_same(compiled.run(batches(4)), loaded.run(batches(4)))


def test_parameters_may_lie_beside_the_libraries(compiled, tmp_path, monkeypatch):
    monkeypatch.setattr("tvm_sched.relax.emit.emit_pipeline.EMBED_LIMIT", 0)
    again = compile_layers()
    folder = again.export(tmp_path / "big.pipeline")
    assert (folder / "stage1.safetensors").is_file()
    assert_same(compiled.run(batches(2)), again.run(batches(2)))
    assert_same(compiled.run(batches(2)), load(folder).run(batches(2)))
    (folder / "stage1.safetensors").unlink()
    with pytest.raises(InputError, match=r"stage1\.safetensors: is missing"):
        load_stage(folder, 1)


def test_a_stage_runs_alone_and_looks_at_its_files_only(compiled, copy):
    for name in ("stage0.so", "stage2.so", "plan.json"):
        (copy / name).unlink()
    stage = load_stage(copy, 1)
    values = batches(1)
    np.testing.assert_array_equal(stage.run(*values)[0], compiled.stages[1].run(*values)[0])


def test_the_manifest_says_what_goes_where(exported):
    manifest = load_manifest(exported)
    assert [[tensor.source for tensor in stage.inputs] for stage in manifest.stages] == [[None], [0], [1, 0]]
    assert [tensor.source for tensor in manifest.outputs] == [2, 0]
    assert [tensor.shape for tensor in manifest.inputs] == [(2, 8)]


def test_an_emulated_pipeline_stays_emulated(tmp_path):
    made = compile_layers("v100-server")
    loaded = load(made.export(tmp_path / "emulated.pipeline"))
    assert loaded.executor.scale == made.executor.scale > 1
    assert_same(made.run(batches(1)), loaded.run(batches(1)))


def test_neither_compiler_nor_solver_is_needed(exported):
    script = (
        "import sys, numpy, tvm_sched.pipeline as pipeline\n"
        "outputs = pipeline.load(sys.argv[1]).run([numpy.zeros((2, 8), 'float32')])[0].value()\n"
        "assert [output.any() for output in outputs] == [False, False]\n"
        "assert not sys.modules.keys() & {'tvm.relax', 'ortools', 'scipy', 'pandas'}"
    )
    environment = {**os.environ, "TVM_USE_RUNTIME_LIB": "1", "PYTHONWARNINGS": "ignore"}
    subprocess.run([sys.executable, "-c", script, str(exported)], env=environment, check=True, timeout=120)


def alter_byte(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "stage1.so").unlink(), r"stage1\.so: is missing"),
        (lambda folder: alter_byte(folder / "stage2.so"), r"stage2\.so: was altered"),
        (lambda folder: alter_byte(folder / "problem.json"), r"problem\.json: was altered"),
        (lambda folder: os.truncate(folder / "stage0.so", 100), r"stage0\.so: has 100 bytes"),
        (lambda folder: (folder / MANIFEST).unlink(), r"has no manifest\.json"),
        (lambda folder: os.truncate(folder / MANIFEST, 90), r"manifest\.json: not a JSON document"),
        (shutil.rmtree, r"there is no such folder"),
    ],
)
def test_damage_is_told(copy, damage, message):
    damage(copy)
    with pytest.raises(InputError, match=message):
        load(copy)


def change(folder, edit):
    data = json.loads((folder / MANIFEST).read_text())
    edit(data)
    (folder / MANIFEST).write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda data: data.update(version=2), "version 2 of tvm_sched.pipeline_artifact is newer"),
        (lambda data: data.update(stages=[]), "there are no stages"),
        (lambda data: data["stages"][2]["inputs"][0].update(source=0), "of stage 0, which does not give it"),
        (lambda data: data["outputs"][0].update(source=None), "the model gets .* of the caller, which does not give"),
        (lambda data: data["stages"][0]["outputs"][0].update(source=1), "stage 0 makes .*, whose source is another"),
        (lambda data: data["stages"][0].update(library="other.so"), "file 'other.so' has no checksum"),
        (lambda data: data["files"].update({"../x": data["files"]["plan.json"]}), r"'../x' is not in the artifact's folder"),
        (lambda data: data["stages"][0]["inputs"][0].update(shape=[2, 9]), "other tensors than manifest.json says"),
        (lambda data: data.update(speed=1), "unknown field"),
    ],
)  # fmt: skip
def test_a_manifest_that_does_not_hold_together_is_refused(copy, edit, message):
    change(copy, edit)
    with pytest.raises(InputError, match=message):
        load(copy)


def test_a_stage_that_is_not_there(exported):
    with pytest.raises(InputError, match="there is no stage 3; stages are 0 to 2"):
        load_stage(exported, 3)


def test_an_artifact_is_replaced_and_nothing_else_is(compiled, copy, tmp_path):
    (copy / "stage0.so").unlink()
    compiled.export(copy)
    assert_same(compiled.run(batches(1)), load(copy).run(batches(1)))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    for target in (tmp_path / "mine", tmp_path / "mine" / "letter.txt"):
        with pytest.raises(InputError, match="is no pipeline artifact"):
            compiled.export(target)
    with pytest.raises(InputError, match="does not exist"):
        compiled.export(tmp_path / "none" / "x")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["copy.pipeline", "mine"]


class StandIn:
    """A stage's module as the artifact's, that says it runs on a GPU, and keeps what it is configured with."""

    def __init__(self, module):
        self.module, self.configured = module, []

    def plans(self):
        return [{**plan, "backend": "cuda"} for plan in self.module.plans()]

    def configure(self, **options):
        self.configured.append(options)


def test_a_stage_for_a_gpu_takes_the_first_that_it_sees_and_keeps_its_parameters_there(exported, monkeypatch):
    load_module = artifact.load_module
    monkeypatch.setattr(artifact, "load_module", lambda *files: StandIn(load_module(*files)))
    assert load_stage(exported, 1).configured == [{"devices": [0], "resident": 1.0}]


def test_outputs_have_the_models_names(tmp_path):
    pytest.importorskip("onnx")

    from tvm_sched.relax import compile_pipeline
    from tvm_sched_runtime.run_artifact import main

    text = """(float[2, 3] x) => (float[2, 3] logits, float[2, 3] h) {
        hidden = MatMul(x, w)  h = Relu(hidden)  logits = MatMul(h, w) }"""
    model = onnx_model(text, {"w": np.eye(3, dtype=np.float32)})
    made = compile_pipeline(model, "cpu2", 2, "equal-split", cost_model="roofline")
    folder = made.export(tmp_path / "named.pipeline")
    assert load_manifest(folder).output_names == ("logits", "h")
    assert [output["name"] for output in load(folder).outputs()] == ["logits", "h"]
    assert main([str(folder), "--json", "--repeat", "1", "-o", str(tmp_path)]) == 0
    change(folder, lambda manifest: manifest.update(output_names=["y", "y"]))
    with pytest.raises(InputError, match="have the names y, y"):
        load_manifest(folder)
