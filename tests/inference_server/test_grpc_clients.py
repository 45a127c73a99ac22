"""What gRPC's tools and load balancers send: health checks, reflection, pings, and streams that stay open."""

import signal
import socket
import struct
import threading
import urllib.request

import pytest
from inference_server_values import copy_artifact

pytest.importorskip("grpc")
import grpc
from google.protobuf import descriptor_pb2

from tvm_sched_serve.grpc_server import SERVICE, messages
from tvm_sched_serve.health_service import NOT_SERVING, SERVICE_UNKNOWN, SERVING

HEALTH = "grpc.health.v1"


def health(channel, name, method="Check", metadata=()):
    known = messages()
    kinds = {
        "request_serializer": known[f"{HEALTH}.HealthCheckRequest"].SerializeToString,
        "response_deserializer": known[f"{HEALTH}.HealthCheckResponse"].FromString,
    }
    make = channel.unary_unary if method == "Check" else channel.unary_stream
    call = make(f"/{HEALTH}.Health/{method}", **kinds)
    return call(known[f"{HEALTH}.HealthCheckRequest"](service=name), timeout=30, metadata=metadata)


def refused(call):
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value.code()


def test_health_follows_models_and_the_end_of_the_server(start, artifacts, tmp_path):
    """Watches and a stream without requests are open as the server is told to end; it does not wait for them."""
    copy_artifact(artifacts / "by1.so", tmp_path / "m.so")
    server = start(tmp_path, "--admin-port", "0", "--drain-delay", "1", "--drain-timeout", "600")
    with grpc.insecure_channel(server.grpc) as channel:
        for name in ("", SERVICE, "m"):
            assert health(channel, name).status == SERVING
        assert refused(lambda: health(channel, "absent")) == grpc.StatusCode.NOT_FOUND
        watches = {name: health(channel, name, "Watch") for name in ("", "m", "absent")}
        assert {name: next(watch).status for name, watch in watches.items()} == {
            "": SERVING, "m": SERVING, "absent": SERVICE_UNKNOWN
        }  # fmt: skip
        address = f"{server.administration}/v2/repository/models/m"
        for act, state in (("unload", NOT_SERVING), ("load", SERVING)):
            urllib.request.urlopen(f"{address}/{act}", b"", timeout=30).close()
            assert next(watches["m"]).status == state
            assert health(channel, "m").status == state
        stop = threading.Event()
        stream = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")(iter(stop.wait, True), timeout=60)
        server.process.send_signal(signal.SIGTERM)
        for name in ("", "m"):
            assert [each.status for each in watches[name]] == [NOT_SERVING]
        assert list(watches["absent"]) == []
        assert list(stream) == []
        stop.set()
    assert server.process.wait(30) == 0


def test_health_of_a_model_needs_the_token(start, artifacts, tmp_path):
    (tmp_path / "tokens").write_text("client-token-1\n")
    server = start(artifacts / "by1.so", "--token-file", str(tmp_path / "tokens"))
    token = [("authorization", "Bearer client-token-1")]
    with grpc.insecure_channel(server.grpc) as channel:
        assert health(channel, "").status == SERVING
        assert health(channel, "by1", metadata=token).status == SERVING
        for method in ("Check", "Watch"):
            for name in ("by1", "absent"):
                code = refused(lambda name=name, method=method: list(health(channel, name, "Watch")))
                assert code == grpc.StatusCode.UNAUTHENTICATED
    assert server.stop() == 0


def reflect(channel, version="v1", **asked):
    known, package = messages(), "grpc.reflection.v1"
    kind = known[f"{package}.ServerReflectionRequest"]
    call = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=kind.SerializeToString,
        response_deserializer=known[f"{package}.ServerReflectionResponse"].FromString,
    )
    (answer,) = call(iter([kind(**asked)]), timeout=30)
    return answer


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_describes_all_services(server, version):
    with grpc.insecure_channel(server.grpc) as channel:
        services = [each.name for each in reflect(channel, version, list_services="").list_services_response.service]
        assert sorted(services) == [f"{HEALTH}.Health", "grpc.reflection.v1.ServerReflection", SERVICE]
        for name in [*services, "inference.ModelInferRequest.InferInputTensor"]:
            answer = reflect(channel, version, file_containing_symbol=name)
            (content,) = answer.file_descriptor_response.file_descriptor_proto
            file = descriptor_pb2.FileDescriptorProto.FromString(content)
            assert name.startswith(f"{file.package}.")
            assert reflect(channel, version, file_by_filename=file.name).file_descriptor_response.file_descriptor_proto
        code = grpc.StatusCode.NOT_FOUND.value[0]
        for asked in ({"file_containing_symbol": "inference.Absent"}, {"file_by_filename": "absent.proto"}):
            assert reflect(channel, version, **asked).error_response.error_code == code


def test_pings_do_not_end_a_connection(server):
    """Twenty of them at once, with no call under way, in frames of HTTP/2."""

    def frame(kind, content=b"", flags=0):
        return struct.pack(">I", len(content))[1:] + bytes([kind, flags]) + bytes(4) + content

    host, port = server.grpc.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as connection, connection.makefile("rb") as reader:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4))
        for number in range(20):
            connection.sendall(frame(6, number.to_bytes(8, "big")))
        answered = 0
        while answered < 20:
            head = reader.read(9)
            assert len(head) == 9
            content = reader.read(int.from_bytes(head[:3], "big"))
            assert head[3] != 7, content  # GOAWAY
            answered += head[3] == 6 and head[4] == 1
