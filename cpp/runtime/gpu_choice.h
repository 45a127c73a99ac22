// Assigns GPUs of this machine to the devices that a schedule was made for.
#ifndef TVM_SCHED_RUNTIME_GPU_CHOICE_H_
#define TVM_SCHED_RUNTIME_GPU_CHOICE_H_

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/machine.h"
#include "runtime/units.h"

namespace tvm_sched::runtime {

/// A device of a schedule, as its topology describes it.
struct WantedGpu {
  std::string name;
  std::string model;  // product, such as "H200 SXM"; empty where nobody said
  Bytes arena;        // memory that the plan takes there
};

/// Pairs of wanted devices, by position, that copy straight to each other.
using Pairs = std::set<std::pair<std::size_t, std::size_t>>;

/// The number of the GPU for each device; empty where there are fewer GPUs than devices.
///
/// Each device gets a GPU of its own: if there is a way, one with enough memory, then one of its
/// model, then such that joined devices are peers. GPUs that are alike are taken by their place on
/// the PCI bus, as `nvidia-smi` and topologies that were detected number them, or `in_order`, as
/// somebody has listed them in CUDA_VISIBLE_DEVICES.
std::vector<int> ChooseGpus(const std::vector<WantedGpu>& wanted, const Pairs& joined,
                            const Gpus& gpus, bool in_order);

/// Whether two names are of one product: "H200 SXM" and "NVIDIA H200". Empty ones fit to all.
bool SameModel(const std::string& wanted, const std::string& found);

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_GPU_CHOICE_H_
