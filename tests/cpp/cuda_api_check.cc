// Compiled, not run, where NVIDIA's cuda.h is: each function that the library declares for itself
// takes what the driver's does.
#include <cuda.h>

#include "runtime/cuda/driver_api.h"
#include "same_interface.h"

namespace {

using tvm_sched::runtime::cuda::DriverApi;
using tvm_sched::testing::SameInterface;

#define CHECK(member, symbol, ...) \
  static_assert(SameInterface<decltype(DriverApi::member), decltype(&symbol)>::value, #symbol);
TVM_SCHED_CUDA_FUNCTIONS(CHECK)

namespace ours = tvm_sched::runtime::cuda;
static_assert(ours::kSuccess == CUDA_SUCCESS && ours::kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(ours::kNotReady == CUDA_ERROR_NOT_READY);
static_assert(ours::kPeerAccessAlreadyEnabled == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
static_assert(ours::kEventDefault == CU_EVENT_DEFAULT);
static_assert(ours::kEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(ours::kStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(ours::kHostAllocPortable == CU_MEMHOSTALLOC_PORTABLE);
static_assert(ours::kHostAllocDeviceMap == CU_MEMHOSTALLOC_DEVICEMAP);
static_assert(ours::kHostRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(ours::kHostRegisterDeviceMap == CU_MEMHOSTREGISTER_DEVICEMAP);
static_assert(ours::kHostRegisterReadOnly == CU_MEMHOSTREGISTER_READ_ONLY);
static_assert(ours::kRegisteredAtHostAddress ==
              CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
static_assert(ours::kReadOnlyRegister == CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED);
static_assert(ours::kCaptureRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(ours::kCaptureNone == CU_STREAM_CAPTURE_STATUS_NONE);
static_assert(ours::kClockRate == CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
static_assert(ours::kMultiprocessors == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(ours::kComputeMode == CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
static_assert(ours::kMemoryClockRate == CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
static_assert(ours::kMemoryBusWidth == CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
static_assert(ours::kCacheSize == CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
static_assert(ours::kCopyEngines == CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
static_assert(ours::kCapabilityMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(ours::kCapabilityMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(ours::kFunctionMaxDynamicSharedMemory ==
              CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);

}  // namespace
