#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "runtime/cuda/numa.h"

namespace tvm_sched::runtime::cuda {
namespace {

constexpr int kDefault = 0, kPrefer = 1, kUnknown = -1;

/// How this thread takes pages now.
int Policy() {
  int mode = kUnknown;
  unsigned long nodes[16] = {};
  return syscall(SYS_get_mempolicy, &mode, nodes, 1024UL, nullptr, 0UL) == 0 ? mode : kUnknown;
}

TEST(Numa, TheNodeOfAPciDeviceIsRead) {
  const std::filesystem::path root = std::filesystem::path(::testing::TempDir()) / "numa_root";
  const std::filesystem::path device = root / "sys/bus/pci/devices/0000:17:00.0";
  std::filesystem::create_directories(device);
  EXPECT_EQ(NodeOfPciDevice("0000:17:00.0", root), -1) << "the system does not say";
  std::ofstream(device / "numa_node") << "1\n";
  EXPECT_EQ(NodeOfPciDevice("0000:17:00.0", root), 1);
  EXPECT_EQ(NodeOfPciDevice("0000:18:00.0", root), -1);
  std::filesystem::remove_all(root);
}

TEST(Numa, PagesComeFromANodeForAWhile) {
  const int before = Policy();
  if (before == kUnknown) GTEST_SKIP() << "this system has no policies of memory";
  if (before != kDefault) GTEST_SKIP() << "these tests were started with another policy";
  {
    const NearNode none(-1);
    EXPECT_EQ(Policy(), kDefault);
    const NearNode first(0);
    if (Policy() == kDefault) GTEST_SKIP() << "the policy of memory cannot be set here";
    EXPECT_EQ(Policy(), kPrefer);
  }
  EXPECT_EQ(Policy(), kDefault);
  const NearNode absent(1000);  // the system refuses a node that is not there
  EXPECT_EQ(Policy(), kDefault);
}

}  // namespace
}  // namespace tvm_sched::runtime::cuda
