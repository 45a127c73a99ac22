// Which of the host's memory is near to a GPU: on machines with several NUMA nodes a copy from or
// to the others also crosses the link between processors.
#ifndef TVM_SCHED_RUNTIME_CUDA_NUMA_H_
#define TVM_SCHED_RUNTIME_CUDA_NUMA_H_

#include <string>

namespace tvm_sched::runtime::cuda {

/// The node of a PCI device ("0000:17:00.0"), or -1 where the system does not say. `root` is the
/// folder that has `sys`.
int NodeOfPciDevice(const std::string& address, const std::string& root = "");

/// While it lives, new pages of the calling thread come from a node, if it has room; -1: from where
/// they would anyway. So does pinned memory, which the driver takes in the caller's name. Where the
/// system refuses this, nothing changes.
class NearNode {
 public:
  explicit NearNode(int node);
  ~NearNode();
  NearNode(const NearNode&) = delete;
  NearNode& operator=(const NearNode&) = delete;

 private:
  static constexpr int kMostNodes = 1024;
  static constexpr int kBits = 8 * sizeof(unsigned long);

  bool changed_ = false;
  int former_mode_ = 0;
  unsigned long former_[kMostNodes / kBits] = {};
};

}  // namespace tvm_sched::runtime::cuda

#endif  // TVM_SCHED_RUNTIME_CUDA_NUMA_H_
