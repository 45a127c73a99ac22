"""The emulated GPU: what it computes, and that it refuses what a GPU would not do right."""

import ctypes

import numpy as np
import pytest
from gpu import Gpu, GpuError
from nvcc_stand_in import compile_image, main

KERNEL = 'extern "C" __global__ void __launch_bounds__(1024) k'


def test_reductions_by_barriers_and_shuffles(gpu):
    source = f"""{KERNEL}(const float* __restrict__ a, float* __restrict__ sums) {{
  __shared__ alignas(64) float parts[8];
  float value = a[blockIdx.x * 256 + threadIdx.x];
  unsigned mask = __activemask();
  for (int delta = 16; delta > 0; delta /= 2) value += __shfl_down_sync(mask, value, delta, 32);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x < 8) {{
    value = parts[threadIdx.x];
    mask = __activemask();
    for (int delta = 4; delta > 0; delta /= 2) value += __shfl_xor_sync(mask, value, delta, 8);
    if (threadIdx.x == 0) sums[blockIdx.x] = value;
  }}
}}"""
    a = np.arange(512, dtype="float32")
    _, sums = gpu.run(source, a, np.zeros(2, "float32"), grid=2, block=256)
    np.testing.assert_array_equal(sums, a.reshape(2, 256).sum(1))


def test_votes_and_atomics(gpu):
    source = f"""{KERNEL}(unsigned* votes, int* counts) {{
  if (threadIdx.x == 0) votes[0] = 0;
  __syncthreads();
  const unsigned ballot = __ballot_sync(0xFFFFFFFFu, threadIdx.x % 2);
  const bool all = __all_sync(0xFFFFFFFFu, threadIdx.x < 32), any = __any_sync(0xFFFFFFFFu, threadIdx.x > 31);
  atomicMax(votes, ballot);
  atomicAdd(counts, all && !any ? 1 : 1000);
}}"""
    votes, counts = gpu.run(source, np.zeros(1, "uint32"), np.zeros(1, "int32"))
    assert votes[0] == 0xAAAAAAAA
    assert counts[0] == 32


def test_the_order_of_threads_is_random_and_of_the_same_seed_the_same(gpu):
    source = f"{KERNEL}(int* next, int* order) {{ order[atomicAdd(next, 1)] = blockIdx.x * 64 + threadIdx.x; }}"
    arrays = (np.zeros(1, "int32"), np.zeros(256, "int32"))
    first, second = (gpu.run(source, *arrays, grid=4, block=64)[1] for _ in range(2))
    assert sorted(first) == list(range(256))
    assert list(first) != sorted(first)
    assert list(first) != list(second), "each launch has an order of its own"


def test_half_and_bfloat16_round_once(gpu):
    source = f"""#include <cuda_fp16.h>
#include <cuda_bf16.h>
{KERNEL}(const half* a, const nv_bfloat16* b, half* c, nv_bfloat16* d) {{
  const int i = threadIdx.x;
  c[i] = __hfma(a[i], a[i], hexp(a[i]));
  d[i] = b[i] * b[i] + htanh(b[i]);
}}"""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.random.default_rng(0).standard_normal(32).astype("float32")
    a, b = x.astype("float16"), x.astype(ml_dtypes.bfloat16)
    *_, c, d = gpu.run(source, a, b, np.zeros_like(a), np.zeros_like(b))
    a32, b32 = a.astype("float32"), b.astype("float32")
    np.testing.assert_array_equal(c, (a32 * a32 + np.exp(a32).astype("float16").astype("float32")).astype("float16"))
    products = (b32 * b32).astype(b.dtype).astype("float32")
    tanh = np.tanh(b32).astype(b.dtype).astype("float32")
    np.testing.assert_array_equal(d.astype("float32"), (products + tanh).astype(b.dtype).astype("float32"))


TENSOR_CORES = """#include <cuda_fp16.h>
extern "C" __global__ void k(const half* a, const half* b, float* c) {
  extern __shared__ __align__(16) unsigned char memory[];
  half* tile = reinterpret_cast<half*>(memory);  // a, then b, 16 rows of 16 each
  const int lane = threadIdx.x;
  unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(tile + lane * 8));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(a + lane * 8) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  to = static_cast<unsigned>(__cvta_generic_to_shared(tile + 256 + lane * 8));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(b + lane * 8) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  asm volatile("cp.async.wait_group WAIT;" ::: "memory");
  __syncthreads();
  unsigned left[4], right[4];
  to = static_cast<unsigned>(__cvta_generic_to_shared(tile + lane % 16 * 16 + lane / 16 * 8));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(left[0]), "=r"(left[1]), "=r"(left[2]), "=r"(left[3]) : "r"(to));
  to = static_cast<unsigned>(__cvta_generic_to_shared(tile + 256 + lane % 16 * 16 + lane / 16 * 8));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(right[0]), "=r"(right[1]), "=r"(right[2]), "=r"(right[3]) : "r"(to));
  for (int half_of_b = 0; half_of_b < 2; ++half_of_b) {
    float d[4] = {0, 0, 0, 0};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[2 * half_of_b]),
                   "r"(right[2 * half_of_b + 1]));
    for (int i = 0; i < 4; ++i) {
      c[(lane / 4 + i / 2 * 8) * 16 + half_of_b * 8 + lane % 4 * 2 + i % 2] = d[i];
    }
  }
}"""


def matrices():
    random = np.random.default_rng(1)
    return random.standard_normal((2, 16, 16)).astype("float16")


def test_a_template_has_shared_memory_for_each_size(gpu):
    source = """template <int kCount>
__device__ float* filled(float value) {
  __shared__ float all[kCount];
  if (threadIdx.x < kCount) all[threadIdx.x] = value;
  __syncthreads();
  return all;
}
extern "C" __global__ void k(float* a) {
  const float *few = filled<1>(7.0f), *many = filled<32>(3.0f);
  a[threadIdx.x] = 10 * few[0] + many[threadIdx.x];
}"""
    assert (gpu.run(source, np.zeros(32, "float32"))[0] == 73).all()


def test_tensor_cores_by_ptx(gpu):
    a, b = matrices()
    source = TENSOR_CORES.replace("WAIT", "0")
    *_, c = gpu.run(source, a, b, np.zeros((16, 16), "float32"), shared=1024)
    np.testing.assert_allclose(c, a.astype("float32") @ b.astype("float32"), rtol=1e-5, atol=1e-5)


def test_a_copy_that_nobody_waits_for_has_not_happened(gpu):
    a, b = matrices()
    *_, c = gpu.run(TENSOR_CORES.replace("WAIT", "1"), a, b, np.zeros((16, 16), "float32"), shared=1024)
    assert np.isnan(c).all()


def test_tensor_cores_by_wmma(gpu):
    source = """#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void k(const half* a, const half* b, float* c) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> left;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> right;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
  wmma::fill_fragment(sum, 0.0f);
  wmma::load_matrix_sync(left, a, 16);
  wmma::load_matrix_sync(right, b, 16);
  wmma::mma_sync(sum, left, right, sum);
  wmma::store_matrix_sync(c, sum, 16, wmma::mem_row_major);
}"""
    a, b = matrices()
    *_, c = gpu.run(source, a, b, np.zeros((16, 16), "float32"))
    np.testing.assert_allclose(c, a.astype("float32") @ b.astype("float32").T, rtol=1e-5, atol=1e-5)


FAULTS = {
    "divergence at a barrier": ("if (threadIdx.x < 8) __syncthreads(); a[0] = 1;", "never meets thread .*: divergence"),
    "two barriers": (
        "if (threadIdx.x < 8) __syncthreads();\nelse __syncthreads();",
        r"line \d, and never meets .* line \d: divergence",
    ),
    "a shuffle without some lanes": (
        "if (threadIdx.x < 8) a[0] = __shfl_sync(0xFFFFFFFFu, 1.0f, 0); else __syncthreads();",
        "exchange in line 2.*divergence",
    ),
    "a mask without the caller": ("a[0] = __shfl_sync(1u, 1.0f, 0);", "its mask leaves out the caller"),
    "a vector at a wrong address": (
        "*(float4*)(a + 1) = *(float4*)(a);",
        "line 2: a vector at address .* multiple of 16",
    ),
    "unknown PTX": ('asm volatile("bar.sync 1, 32;");', "PTX that the emulator does not know: bar.sync"),
    "too much static shared memory": (
        "__shared__ float big[20000]; big[threadIdx.x] = 0; a[0] = big[0];",
        "80000 bytes of static and 0 of dynamic shared memory, and 49152 are allowed",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.sampled(3)
def test_faults_name_kernel_thread_and_line(gpu, name):
    body, message = FAULTS[name]
    with pytest.raises(GpuError, match=f'kernel "k", thread .* of block .*{message}'):
        gpu.run(f"{KERNEL}(float* a) {{\n{body}\n}}", np.zeros(64, "float32"))
    with pytest.raises(GpuError, match=r"7(00|16|19)"):
        gpu.allocate(4)  # the GPU is lost


def test_what_nobody_wrote_is_not_a_number(gpu):
    source = f"""{KERNEL}(float* a) {{
  __shared__ float still[32];
  a[threadIdx.x] = still[threadIdx.x];
  if (blockIdx.x == 1) still[threadIdx.x] = 1;
}}"""
    assert np.isnan(gpu.run(source, np.zeros(32, "float32"), grid=8)[0]).all()
    fresh = np.empty(4, "float32")
    ctypes.memmove(fresh.ctypes.data, gpu.allocate(16), 16)
    assert np.isnan(fresh).all()


def test_lanes_of_a_warp_do_not_wait_for_each_other(gpu):
    """Volta and newer: what a lane wrote is seen by another one after __syncwarp."""
    body = "__shared__ volatile int v[32];\nint i = threadIdx.x;\nv[i] = i;\nSYNC\na[i] = v[(i + 1) % 32];"
    with_sync = gpu.run(f"{KERNEL}(int* a) {{ {body} }}".replace("SYNC", "__syncwarp();"), np.zeros(32, "int32"))[0]
    assert list(with_sync) == [*range(1, 32), 0]
    without = gpu.run(f"{KERNEL}(int* a) {{ {body} }}".replace("SYNC", ""), np.zeros(32, "int32"))[0]
    assert -1 in without


@pytest.mark.parametrize(
    ("grid", "block", "shared", "status"),
    [
        ((1, 65536), 32, 0, 1), (1, (32, 33), 0, 1), (1, (1, 1, 65), 0, 1), (0, 1, 0, 1), (1, 1, 49153, 1),
        (1, 512, 0, 701),
    ],
)  # fmt: skip
@pytest.mark.sampled(3)
def test_limits_of_a_launch(gpu, grid, block, shared, status):
    function = gpu.function('extern "C" __global__ void __launch_bounds__(256) k(float* a) {}', "k")
    with pytest.raises(GpuError, match=f"cuLaunchKernel: {status}"):
        gpu.launch(function, grid, block, gpu.allocate(4), shared=shared)


def test_shared_memory_above_48_kib_is_asked_for(gpu):
    function = gpu.function(f"{KERNEL}(float* a) {{}}", "k")
    with pytest.raises(GpuError, match="cuFuncSetAttribute: 1"):
        gpu.call("cuFuncSetAttribute", function, 8, (227 << 10) + 1)  # the limit of sm_90
    gpu.call("cuFuncSetAttribute", function, 8, 227 << 10)
    gpu.launch(function, 1, 1, gpu.allocate(4), shared=227 << 10)
    gpu.synchronize()


def test_images_are_for_architectures(gpu):
    source = f"{KERNEL}(float* a) {{}}"
    for targets in (("sm_80",), ("sm_100", "compute_100"), ("sm_90a", "sm_120")):
        if targets == ("sm_90a", "sm_120"):
            gpu.function(source, "k", targets)
            continue
        with pytest.raises(GpuError, match="cuModuleLoadData: 209"):
            gpu.function(source, "k", targets)
    gpu.function(source, "k", ("sm_80", "compute_80"))  # PTX serves newer ones
    with pytest.raises(GpuError, match="cuModuleLoadData: 200"):
        gpu.call("cuModuleLoadData", ctypes.byref(ctypes.c_void_p()), b"\x50\xed\x55\xba" + bytes(64))
    with pytest.raises(GpuError, match="cuModuleGetFunction: 500"):
        gpu.function(source, "other")


def test_calls_without_a_context_and_of_another_one(gpu):
    function = gpu.function(f"{KERNEL}(float* a) {{}}", "k")
    memory = gpu.allocate(4)
    gpu.call("cuCtxSetCurrent", None)
    for call in (lambda: gpu.allocate(4), lambda: gpu.launch(function, 1, 1, memory)):
        with pytest.raises(GpuError, match="201"):
            call()


@pytest.mark.parametrize("peers", [False, True])
def test_memory_of_other_gpus_is_reached_by_peers_alone(gpu, peers):
    Gpu.configure(2, peers=peers)
    first, second = Gpu(0), Gpu(1)
    there = second.allocate(4)
    first.enter()
    if peers:
        first.call("cuCtxEnablePeerAccess", second.context, 0)
    function = first.function(f"{KERNEL}(float* a) {{ a[0] = 1; }}", "k")
    first.launch(function, 1, 1, there)
    if peers:
        first.synchronize()
    else:
        with pytest.raises(GpuError, match="argument 0 lies on GPU 1, which GPU 0 does not reach"):
            first.synchronize()


def test_the_stand_in_for_nvcc_refuses_what_it_does_not_know(tmp_path, capsys):
    assert main(["--fatbin", "x.cu", "-o", "x", "--device-debug"]) == 1
    assert "does not know the option '--device-debug'" in capsys.readouterr().err
    assert main(["--list-gpu-code"]) == 0
    assert "sm_90" in capsys.readouterr().out


def test_a_source_that_does_not_compile_says_where(gpu, tmp_path, capsys):
    source = tmp_path / "x.cu"
    source.write_text(f"{KERNEL}(float* a) {{\n  a[0] = b;\n}}")
    assert main(["--fatbin", str(source), "-o", str(tmp_path / "x"), "-gencode", "arch=compute_90,code=sm_90"]) == 1
    assert "kernels.cu:2" in capsys.readouterr().err


def test_one_source_is_compiled_once(gpu, monkeypatch):
    source = f"{KERNEL}(float* a) {{ a[0] = 3; }}"
    image = compile_image(source, ["sm_90"])
    monkeypatch.setattr("nvcc_stand_in.compile_library", None)
    assert compile_image(source, ["sm_90"]) == image
