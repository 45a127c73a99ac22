// What is said where an artifact meets another machine than it was made for.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/machine.h"

namespace tvm_sched::runtime {
namespace {

std::vector<std::string> Told(const std::string& metadata, const Machine& machine) {
  return Differences(JsonCursor::Parse(metadata, "metadata"), machine);
}

/// Two GPUs of 1000 bytes.
Machine TwoGpus(bool peers) {
  Machine machine{"x86_64", 4, {4000}, {}};
  machine.gpus.list = {{"H200", {1000}}, {"H200", {1000}}};
  machine.gpus.peers = {{true, peers}, {peers, true}};
  return machine;
}

std::string Cuda(int devices, int arena, const std::string& topology) {
  std::string list;
  for (int d = 0; d < devices; ++d) {
    list += (d ? ", " : "") + ("{\"name\": \"gpu" + std::to_string(d) + "\", \"arena_bytes\": ") +
            std::to_string(arena) + "}";
  }
  return "{\"needs\": {\"backend\": \"cuda\", \"devices\": [" + list +
         "]}, \"topology_description\": " + topology + "}";
}

void ExpectOne(const std::vector<std::string>& told, const std::string& part) {
  ASSERT_EQ(told.size(), 1U);
  EXPECT_NE(told[0].find(part), std::string::npos) << told[0];
}

TEST(Machine, NothingIsSaidWhereNothingDiffersOrNothingIsKnown) {
  EXPECT_TRUE(Told("{}", TwoGpus(false)).empty());
  EXPECT_TRUE(Told(R"({"machine": {"architecture": "x86_64"}})", TwoGpus(false)).empty());
  EXPECT_TRUE(Told(Cuda(2, 1000, R"({"peer_access": true})"), TwoGpus(true)).empty());
  EXPECT_TRUE(Told(Cuda(2, 1000, R"({"peer_access": false})"), TwoGpus(false)).empty());
}

TEST(Machine, FewerGpusAndLessMemory) {
  ExpectOne(Told(Cuda(3, 10, "{}"), TwoGpus(false)),
            "scheduled over 3 GPUs, and this process may use 2");
  const auto both = Told(Cuda(2, 1001, "{}"), TwoGpus(false));
  ASSERT_EQ(both.size(), 2U);
  EXPECT_NE(both[1].find("needs 1001 bytes on GPU 1 (H200), which has 1000"), std::string::npos);
  // Devices 0 and 2 share a GPU, and its memory.
  const auto told = Told(Cuda(3, 600, "{}"), TwoGpus(false));
  ASSERT_EQ(told.size(), 2U);
  EXPECT_NE(told[1].find("needs 1200 bytes on GPU 0"), std::string::npos) << told[1];
}

TEST(Machine, NoPeerAccess) {
  const std::string expected =
      "straight between \"gpu0\" and \"gpu1\" (GPUs 0 and 1), and these have no peer access here";
  for (const char* topology :
       {R"({"peer_access": true})", R"({"links": [{"devices": ["gpu0", "gpu1"]}]})",
        R"({"switches": [{"devices": ["gpu1", "gpu0"]}]})"}) {
    ExpectOne(Told(Cuda(2, 10, topology), TwoGpus(false)), expected);
    EXPECT_TRUE(Told(Cuda(2, 10, topology), TwoGpus(true)).empty());
  }
}

TEST(Machine, NoGpuAtAll) {
  Machine machine{"x86_64", 4, {4000}, {}};
  ExpectOne(Told(Cuda(2, 10, "{}"), machine), "it runs on 2 GPUs, and the driver finds none");
  machine.gpus.trouble = "no NVIDIA driver (libcuda.so.1) is installed";
  ExpectOne(Told(Cuda(1, 10, "{}"), machine), "it runs on 1 GPU, and no NVIDIA driver");
}

TEST(Machine, CoresAndMemoryOfCpus) {
  Machine machine{"x86_64", 1, {4000}, {}};
  const char* needs = R"({"needs": {"backend": "cpu", "devices": [
      {"name": "cpu0", "arena_bytes": 3000}, {"name": "cpu1", "arena_bytes": 3000}]}})";
  const auto told = Told(needs, machine);
  ASSERT_EQ(told.size(), 2U);
  EXPECT_NE(told[0].find("over 2 CPU devices, and this process may use 1 core,"),
            std::string::npos);
  EXPECT_NE(told[1].find("needs 6000 bytes of memory for its buffers"), std::string::npos);
}

TEST(Machine, ThisOneHasCoresAndMemory) {
  const Machine machine = ThisMachine(/*with_gpus=*/true);
  EXPECT_GE(machine.cores, 1);
  EXPECT_GT(machine.memory.count, 1 << 20);
  EXPECT_EQ(machine.gpus.list.size(), machine.gpus.peers.size());
  EXPECT_TRUE(!machine.gpus.list.empty() || !machine.gpus.trouble.empty());
}

}  // namespace
}  // namespace tvm_sched::runtime
