// What tests ask of the driver that is none, besides CUDA's own functions.
#ifndef TVM_SCHED_TESTS_CUDA_EMULATOR_FAKE_CUDA_H_
#define TVM_SCHED_TESTS_CUDA_EMULATOR_FAKE_CUDA_H_

extern "C" {

/// Bytes that a kernel or the host touches.
struct FakeCudaAccess {
  const void* data;
  unsigned long long size;
  int written;
};

/// What was made and not destroyed.
struct FakeCudaLive {
  int streams, events, graphs, executables, modules;
};

/// Forget all former settings: `devices` GPUs of `memory` bytes. `peers`: 0 none, 1 all, 2 those of
/// a pair (0 and 1, 2 and 3), 3 each reaches those with a higher number.
void fake_cuda_configure(int devices, long long memory, int peers);

/// Let the call after `skip` further ones of a function ("cuMemcpyAsync") fail with `code`.
void fake_cuda_fail(const char* function, int skip, int code);
/// From that call on, the GPU whose context is current is lost: each function fails there.
void fake_cuda_lose(const char* function, int skip);
void fake_cuda_find_again();

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

/// What is wrong with copies: 0 nothing, 1 the last byte of each between GPUs arrives wrong, 2 each
/// of these counts a second more in the times of events, 3 each between a GPU and the host does.
void fake_cuda_spoil_peers(int how);

/// How many bytes may be pinned.
void fake_cuda_limit_pinned(long long bytes);

/// How many accesses without order there were, and of the first one, what was wrong.
int fake_cuda_conflicts(char* text, int size);

void fake_cuda_live(FakeCudaLive* live);

/// What the kernels touch that this thread launches from now on. Of other memory that their
/// arguments point to all that was allocated with it counts as written.
void tvm_sched_kernel_accesses(const FakeCudaAccess* accesses, int count);

/// What the host touches now; memory that is not pinned is left out.
void tvm_sched_host_accesses(const FakeCudaAccess* accesses, int count);
}

#endif  // TVM_SCHED_TESTS_CUDA_EMULATOR_FAKE_CUDA_H_
