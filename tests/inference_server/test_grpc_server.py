"""Messages of gRPC: their classes, and requests and responses whose raw contents are read and written beside them."""

import gc
import weakref

import pytest

pytest.importorskip("grpc")

from tvm_sched_serve import grpc_server
from tvm_sched_serve.grpc_server import InferAnswer, InferCall, messages, read_length


@pytest.fixture
def any_size(monkeypatch):
    """Small messages are read like large ones."""
    monkeypatch.setattr(grpc_server, "LARGE_BYTES", 0)


def request(contents, **fields):
    made = messages()["ModelInferRequest"](model_name="m", raw_input_contents=contents, **fields)
    for number in range(len(contents)):
        made.inputs.add(name=f"x{number}", datatype="FP32", shape=(1, number)).parameters["a"].int64_param = -1
    made.outputs.add(name="y")
    made.parameters["priority"].int64_param = 1 << 40
    return made


def test_classes_of_messages_within_messages_stay():
    """Protobuf makes them anew when they are gone; if the garbage collector is just at it, the process ends."""
    made = request([b"1234"])
    kinds = [weakref.ref(type(each)) for each in (made.inputs[0], made.outputs[0])]
    del made
    gc.collect()
    assert all(kind() is not None for kind in kinds)


@pytest.mark.parametrize("sizes", [(), (0,), (127, 128), (16_383, 16_384, 5), (3_000_000,)])
@pytest.mark.usefixtures("any_size")
def test_raw_contents_are_read_beside_the_message(sizes):
    contents = [bytes([k % 251]) * size for k, size in enumerate(sizes, 1)]
    made = request(contents, id="seven")
    call = InferCall.of(made.SerializeToString(deterministic=True))
    assert [bytes(each) for each in call.contents] == contents
    made.ClearField("raw_input_contents")
    assert call.message == made


def test_a_small_message_is_read_by_protobuf():
    made = request([b"1234", b""])
    call = InferCall.of(made.SerializeToString())
    assert (call.message, list(call.contents)) == (made, [b"1234", b""])


@pytest.mark.usefixtures("any_size")
def test_a_message_with_other_fields_is_read_by_protobuf():
    made = request([b"1234"])
    call = InferCall.of(made.SerializeToString() + bytes([15 << 3, 7]))  # a number that the protocol does not know
    assert list(call.contents) == [b"1234"]
    assert call.message.model_name == "m"


@pytest.mark.usefixtures("any_size")
def test_what_is_no_message_is_refused():
    from google.protobuf.message import DecodeError

    content = request([b"1234" * 100]).SerializeToString()
    for wrong in (
        content[:-1],
        content + b"\x3a",
        content + b"\x3a\xff",
        b"\x07" + content,
        b"\x3a" + b"\xff" * 100_000,
    ):
        with pytest.raises(DecodeError):
            InferCall.of(wrong)


@pytest.mark.parametrize("sizes", [(), (0, 300), (1 << 21,)])
def test_responses_are_those_of_protobuf(sizes):
    contents = [bytes([k]) * size for k, size in enumerate(sizes)]
    message = messages()["ModelInferResponse"](model_name="m", id="seven")
    answer = InferAnswer(message, [memoryview(each) for each in contents])
    read = messages()["ModelInferResponse"].FromString(answer.serialize())
    assert list(read.raw_output_contents) == contents
    assert read == answer.whole()


def test_a_length_without_end_is_given_up_after_ten_bytes():
    read = []

    class Endless:
        def __getitem__(self, at):
            read.append(at)
            return 0xFF

    with pytest.raises(IndexError):
        read_length(Endless(), 1)
    assert read == list(range(1, 11))


@pytest.mark.usefixtures("any_size")
def test_a_message_of_many_fields_is_read_by_protobuf():
    """A view of each of its contents would take 240 times the message's size."""
    for count, kind in ((255, memoryview), (257, bytes)):
        call = InferCall.of(b"\x3a\x00" * count)
        assert len(call.contents) == count
        assert {type(each) for each in call.contents} == {kind}
