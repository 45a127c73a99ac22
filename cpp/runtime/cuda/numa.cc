#include "runtime/cuda/numa.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>

namespace tvm_sched::runtime::cuda {

namespace {

constexpr int kPrefer = 1;  // MPOL_PREFERRED of linux/mempolicy.h

}  // namespace

int NodeOfPciDevice(const std::string& address, const std::string& root) {
  std::ifstream file(root + "/sys/bus/pci/devices/" + address + "/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

NearNode::NearNode(int node) {
  if (node < 0 || node >= kMostNodes) return;
  // The kernel reads one bit less than it is told.
  if (syscall(SYS_get_mempolicy, &former_mode_, former_, kMostNodes, nullptr, 0UL) != 0) return;
  unsigned long nodes[kMostNodes / kBits] = {};
  nodes[node / kBits] = 1UL << (node % kBits);
  changed_ = syscall(SYS_set_mempolicy, kPrefer, nodes, kMostNodes + 1UL) == 0;
}

NearNode::~NearNode() {
  if (changed_) syscall(SYS_set_mempolicy, former_mode_, former_, kMostNodes + 1UL);
}

}  // namespace tvm_sched::runtime::cuda
