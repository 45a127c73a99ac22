// Limits of containers, read from the files of control groups of both versions.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "runtime/cores.h"

namespace tvm_sched::runtime {
namespace {

namespace fs = std::filesystem;

class ContainerLimitsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::path(::testing::TempDir()) / (std::string("limits_") + test->name());
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  ContainerLimits Read() const { return ReadContainerLimits(root_.string()); }

 private:
  fs::path root_;
};

TEST_F(ContainerLimitsTest, NothingIsLimitedWhereNothingIsSaid) {
  EXPECT_EQ(Read().cores, 0);
  EXPECT_EQ(Read().memory, 0);
  Write("proc/self/cgroup", "0::/\nnonsense\n");
  Write("sys/fs/cgroup/memory.max", "max\n");
  Write("sys/fs/cgroup/cpu.max", "max 100000\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  Write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Read().cores, 0);
  EXPECT_EQ(Read().memory, 0);
}

TEST_F(ContainerLimitsTest, SecondVersion) {
  Write("sys/fs/cgroup/memory.max", "8589934592\n");
  Write("sys/fs/cgroup/cpu.max", "250000 100000\n");
  EXPECT_EQ(Read().cores, 2) << "a part of a core is none";
  EXPECT_EQ(Read().memory, 8589934592);
  Write("sys/fs/cgroup/memory.high", "4294967296\n");
  Write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(Read().cores, 1);
  EXPECT_EQ(Read().memory, 4294967296);
}

TEST_F(ContainerLimitsTest, TheLeastLimitOfAllGroupsAboveCounts) {
  Write("proc/self/cgroup", "0::/machine.slice/pod/container\n");
  Write("sys/fs/cgroup/machine.slice/memory.max", "4096000\n");
  Write("sys/fs/cgroup/machine.slice/pod/container/memory.max", "max\n");
  Write("sys/fs/cgroup/machine.slice/pod/cpu.max", "300000 100000\n");
  Write("sys/fs/cgroup/machine.slice/pod/container/cpu.max", "800000 100000\n");
  Write("sys/fs/cgroup/other/memory.max", "1\n");
  EXPECT_EQ(Read().cores, 3);
  EXPECT_EQ(Read().memory, 4096000);
}

TEST_F(ContainerLimitsTest, FirstVersion) {
  Write("proc/self/cgroup", "9:memory:/docker/1a\n4:cpu,cpuacct:/docker/1a\n0::/docker/1a\n");
  Write("sys/fs/cgroup/memory/docker/1a/memory.limit_in_bytes", "2147483648\n");
  Write("sys/fs/cgroup/cpu,cpuacct/docker/1a/cpu.cfs_quota_us", "400000\n");
  Write("sys/fs/cgroup/cpu,cpuacct/docker/1a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Read().cores, 4);
  EXPECT_EQ(Read().memory, 2147483648);
}

TEST_F(ContainerLimitsTest, FirstVersionMountedInTheContainer) {
  Write("proc/self/cgroup", "9:memory:/docker/1a\n4:cpu,cpuacct:/../outside\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
  Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n");
  Write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "50000\n");
  EXPECT_EQ(Read().cores, 3);
  EXPECT_EQ(Read().memory, 1073741824);
}

}  // namespace
}  // namespace tvm_sched::runtime
