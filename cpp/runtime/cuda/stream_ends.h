// Resources that kernels keep for a stream, and must release when it is destroyed.
#ifndef TVM_SCHED_RUNTIME_CUDA_STREAM_ENDS_H_
#define TVM_SCHED_RUNTIME_CUDA_STREAM_ENDS_H_

#include <cstddef>
#include <functional>
#include <optional>

#include "runtime/cuda/driver_api.h"

namespace tvm_sched::runtime::cuda {

/// Call `release` when the stream ends: its address may then be another stream's. The default
/// stream ends with the process. From any thread.
void AtEndOfStream(Stream stream, std::function<void()> release);

/// Release what was kept for a stream, all work of which has ended; in the reverse order. Who made
/// it calls this before it destroys it.
void EndStream(Stream stream);

/// Bytes of workspace that the plan has counted for kernels of libraries on a stream, until it
/// ends; no value where it has said nothing.
void PlanWorkspace(Stream stream, std::size_t bytes);
std::optional<std::size_t> PlannedWorkspace(Stream stream);

}  // namespace tvm_sched::runtime::cuda

#endif  // TVM_SCHED_RUNTIME_CUDA_STREAM_ENDS_H_
