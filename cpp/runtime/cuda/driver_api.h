// The part of the CUDA driver's interface that is used here, declared anew: the library is built
// where there is no toolkit, and libcuda.so.1 is opened when a run asks for it. Names and values
// are those of NVIDIA's cuda.h; tests/cpp/cuda_api_check.cc holds the two together.
#ifndef TVM_SCHED_RUNTIME_CUDA_DRIVER_API_H_
#define TVM_SCHED_RUNTIME_CUDA_DRIVER_API_H_

#include <cstddef>

namespace tvm_sched::runtime::cuda {

using Result = int;
using DeviceId = int;
using DevicePointer = unsigned long long;
using Context = struct CUctx_st*;
using Stream = struct CUstream_st*;
using Event = struct CUevent_st*;
using Module = struct CUmod_st*;
using Function = struct CUfunc_st*;
using Graph = struct CUgraph_st*;
using GraphExec = struct CUgraphExec_st*;
using HostFunction = void (*)(void*);

inline constexpr Result kSuccess = 0;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNotReady = 600;
inline constexpr Result kPeerAccessAlreadyEnabled = 704;

inline constexpr unsigned kEventDefault = 0;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kHostAllocPortable = 1;   // pinned for every context
inline constexpr unsigned kHostAllocDeviceMap = 2;  // and addressable by kernels
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr unsigned kHostRegisterDeviceMap = 2;
inline constexpr unsigned kHostRegisterReadOnly = 8;  // memory that GPUs only read
inline constexpr int kCaptureRelaxed = 2;
inline constexpr int kFunctionMaxDynamicSharedMemory = 8;
inline constexpr int kCaptureNone = 0;

// CUdevice_attribute
inline constexpr int kClockRate = 13, kMultiprocessors = 16, kComputeMode = 20;
inline constexpr int kMemoryClockRate = 36, kMemoryBusWidth = 37, kCacheSize = 38;
inline constexpr int kCopyEngines = 40, kCapabilityMajor = 75, kCapabilityMinor = 76;
inline constexpr int kRegisteredAtHostAddress = 91, kReadOnlyRegister = 113;

// X(member, symbol, parameters...): one row for each function.
#define TVM_SCHED_CUDA_FUNCTIONS(X)                                                           \
  X(Init, cuInit, unsigned)                                                                   \
  X(DriverGetVersion, cuDriverGetVersion, int*)                                               \
  X(GetErrorName, cuGetErrorName, Result, const char**)                                       \
  X(GetErrorString, cuGetErrorString, Result, const char**)                                   \
  X(DeviceGetCount, cuDeviceGetCount, int*)                                                   \
  X(DeviceGet, cuDeviceGet, DeviceId*, int)                                                   \
  X(DeviceGetName, cuDeviceGetName, char*, int, DeviceId)                                     \
  X(DeviceTotalMemory, cuDeviceTotalMem_v2, std::size_t*, DeviceId)                           \
  X(DeviceGetAttribute, cuDeviceGetAttribute, int*, int, DeviceId)                            \
  X(DeviceGetPciBusId, cuDeviceGetPCIBusId, char*, int, DeviceId)                             \
  X(DeviceCanAccessPeer, cuDeviceCanAccessPeer, int*, DeviceId, DeviceId)                     \
  X(PrimaryContextRetain, cuDevicePrimaryCtxRetain, Context*, DeviceId)                       \
  X(ContextSetCurrent, cuCtxSetCurrent, Context)                                              \
  X(ContextGetCurrent, cuCtxGetCurrent, Context*)                                             \
  X(ContextEnablePeerAccess, cuCtxEnablePeerAccess, Context, unsigned)                        \
  X(StreamPriorityRange, cuCtxGetStreamPriorityRange, int*, int*)                             \
  X(MemoryInfo, cuMemGetInfo_v2, std::size_t*, std::size_t*)                                  \
  X(MemoryAllocate, cuMemAlloc_v2, DevicePointer*, std::size_t)                               \
  X(MemoryFree, cuMemFree_v2, DevicePointer)                                                  \
  X(HostAllocate, cuMemHostAlloc, void**, std::size_t, unsigned)                              \
  X(HostFree, cuMemFreeHost, void*)                                                           \
  X(HostRegister, cuMemHostRegister_v2, void*, std::size_t, unsigned)                         \
  X(HostUnregister, cuMemHostUnregister, void*)                                               \
  X(CopyAsync, cuMemcpyAsync, DevicePointer, DevicePointer, std::size_t, Stream)              \
  X(StreamCreate, cuStreamCreateWithPriority, Stream*, unsigned, int)                         \
  X(StreamDestroy, cuStreamDestroy_v2, Stream)                                                \
  X(StreamQuery, cuStreamQuery, Stream)                                                       \
  X(StreamSynchronize, cuStreamSynchronize, Stream)                                           \
  X(StreamWaitEvent, cuStreamWaitEvent, Stream, Event, unsigned)                              \
  X(StreamIsCapturing, cuStreamIsCapturing, Stream, int*)                                     \
  X(StreamBeginCapture, cuStreamBeginCapture_v2, Stream, int)                                 \
  X(StreamEndCapture, cuStreamEndCapture, Stream, Graph*)                                     \
  X(EventCreate, cuEventCreate, Event*, unsigned)                                             \
  X(EventDestroy, cuEventDestroy_v2, Event)                                                   \
  X(EventRecord, cuEventRecord, Event, Stream)                                                \
  X(EventQuery, cuEventQuery, Event)                                                          \
  X(EventElapsedTime, cuEventElapsedTime, float*, Event, Event)                               \
  X(LaunchHostFunction, cuLaunchHostFunc, Stream, HostFunction, void*)                        \
  X(GraphInstantiate, cuGraphInstantiateWithFlags, GraphExec*, Graph, unsigned long long)     \
  X(GraphLaunch, cuGraphLaunch, GraphExec, Stream)                                            \
  X(GraphExecDestroy, cuGraphExecDestroy, GraphExec)                                          \
  X(GraphDestroy, cuGraphDestroy, Graph)                                                      \
  X(ModuleLoadData, cuModuleLoadData, Module*, const void*)                                   \
  X(ModuleUnload, cuModuleUnload, Module)                                                     \
  X(ModuleGetFunction, cuModuleGetFunction, Function*, Module, const char*)                   \
  X(FunctionSetAttribute, cuFuncSetAttribute, Function, int, int)                             \
  X(LaunchKernel, cuLaunchKernel, Function, unsigned, unsigned, unsigned, unsigned, unsigned, \
    unsigned, unsigned, Stream, void**, void**)

/// The functions of an opened driver.
struct DriverApi {
#define TVM_SCHED_CUDA_MEMBER(member, symbol, ...) Result (*member)(__VA_ARGS__) = nullptr;
  TVM_SCHED_CUDA_FUNCTIONS(TVM_SCHED_CUDA_MEMBER)
#undef TVM_SCHED_CUDA_MEMBER
};

}  // namespace tvm_sched::runtime::cuda

#endif  // TVM_SCHED_RUNTIME_CUDA_DRIVER_API_H_
