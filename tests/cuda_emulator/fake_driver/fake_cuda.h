// What tests ask of the driver that is none, besides CUDA's own functions.
#ifndef TVM_SCHED_TESTS_CUDA_EMULATOR_FAKE_CUDA_H_
#define TVM_SCHED_TESTS_CUDA_EMULATOR_FAKE_CUDA_H_

extern "C" {

/// Forget all former settings: `devices` GPUs of `memory` bytes, which are peers or not.
void fake_cuda_configure(int devices, long long memory, int peers);

/// Let the call after `skip` further ones of a function ("cuMemcpyAsync") fail with `code`.
void fake_cuda_fail(const char* function, int skip, int code);

/// How often a function was called since fake_cuda_configure.
int fake_cuda_calls(const char* function);

/// Put a function of the host in a stream's order, as a kernel is.
int fake_cuda_enqueue(void* stream, void (*function)(void*), void* data);

/// What streams have done since fake_cuda_configure, in order: `H` and `h` where a copy out of
/// pinned memory began and ended, `D`, `d` a copy into pinned memory, `K`, `k` a kernel. Writes at
/// most `size` bytes, a zero behind the last.
void fake_cuda_trace(char* text, int size);

/// Bytes that are allocated and not freed: on devices, or pinned (`device` -1).
long long fake_cuda_allocated(int device);
}

#endif  // TVM_SCHED_TESTS_CUDA_EMULATOR_FAKE_CUDA_H_
