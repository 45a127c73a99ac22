// Compares the machine that an artifact was made for with the one that loads it.
#ifndef TVM_SCHED_RUNTIME_MACHINE_H_
#define TVM_SCHED_RUNTIME_MACHINE_H_

#include <optional>
#include <string>
#include <vector>

#include "runtime/json_cursor.h"
#include "runtime/units.h"

namespace tvm_sched::runtime {

struct Gpu {
  std::string name;
  Bytes memory;
  std::string address{};  // on the PCI bus
};

/// The GPUs that CUDA's driver lets this process use.
struct Gpus {
  std::vector<Gpu> list;
  std::vector<std::vector<bool>> peers;  // by reader and holder of the memory
  /// Why there is no list: no driver, or what the driver said. Empty where there is one.
  std::string trouble;
  /// Whether somebody has listed them in CUDA_VISIBLE_DEVICES.
  bool listed = false;
};

struct Machine {
  std::string architecture;
  int cores = 1;  // that this process may use
  Bytes memory;   // the same, by the limit of its container
  Gpus gpus;
};

/// This machine; its GPUs only where they are asked for, since that starts CUDA's driver, which a
/// process should not do before it forks.
Machine ThisMachine(bool with_gpus);

/// Whether an artifact with this metadata runs on GPUs.
bool NeedsGpus(const JsonCursor& metadata);

/// The number of the GPU that stands for each device of an artifact, see ChooseGpus; empty where
/// there are too few GPUs.
std::vector<int> GpusFor(const JsonCursor& metadata, const Gpus& gpus);

/// How a machine differs from what an artifact's metadata asks for, each with what to do. What the
/// metadata does not say is not compared.
std::vector<std::string> Differences(const JsonCursor& metadata, const Machine& machine);

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_MACHINE_H_
