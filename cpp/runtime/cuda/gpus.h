// Properties of the GPUs that this process may use, by CUDA's driver.
#ifndef TVM_SCHED_RUNTIME_CUDA_GPUS_H_
#define TVM_SCHED_RUNTIME_CUDA_GPUS_H_

#include <string>
#include <vector>

#include "runtime/cuda/driver_api.h"
#include "runtime/units.h"

namespace tvm_sched::runtime::cuda {

struct GpuFacts {
  std::string name;
  std::string address;  // on the PCI bus: "0000:17:00.0"
  Bytes memory;
  int capability = 0;  // 90 for sm_90
  int multiprocessors = 0;
  int clock_khz = 0, memory_clock_khz = 0;  // the highest
  int memory_bits = 0;                      // width of its memory's bus
  Bytes cache;                              // of level 2
  int copy_engines = 0;
  int compute_mode = 0;  // 0: any number of processes may use it
};

/// As the system writes it: "0000:17:00.0".
std::string PciAddress(DeviceId id);

/// By their numbers in this process, which CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER decide. This
/// and the others throw CudaError.
std::vector<GpuFacts> ListGpus();

/// Whether each GPU (row) can access the memory of each other one.
std::vector<std::vector<bool>> PeerMatrix();

/// The newest CUDA that the driver knows: 13000 for 13.0.
int DriverVersion();

/// Bytes of a GPU's memory that nobody has. Opens the GPU.
Bytes FreeMemory(int gpu);

/// Bytes a second of large copies, the median of several.
struct CopyRates {
  double from_host = 0, to_host = 0;            // each alone
  double from_host_both = 0, to_host_both = 0;  // both ways at once
  double within = 0;                            // of its own memory, read and written
};

/// Between pinned memory and a GPU, in copies of `size` or of a part of what is free.
CopyRates MeasureCopies(int gpu, Bytes size);

/// Bytes a second from one GPU's memory to another's, each 0 where it is not possible.
struct PeerRates {
  double pulled = 0;  // by the receiver, as runs do it
  double pushed = 0;  // by the sender
  double staged = 0;  // through pinned memory of the host, in chunks
  bool right = true;  // whether the bytes of both arrived, where GPUs are peers
};

/// In copies of `size` or of a part of what is free.
PeerRates MeasurePeerCopies(int from, int to, Bytes size);

}  // namespace tvm_sched::runtime::cuda

#endif  // TVM_SCHED_RUNTIME_CUDA_GPUS_H_
