// What is said where an artifact meets another machine than it was made for.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/gpu_choice.h"
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

/// GPUs of these names, in PCI order unless `addresses` says otherwise; all peers.
Gpus Named(const std::vector<std::string>& names, std::vector<std::string> addresses = {}) {
  Gpus gpus;
  for (std::size_t g = 0; g < names.size(); ++g) {
    if (addresses.size() == g) addresses.push_back("0000:0" + std::to_string(g) + ":00.0");
    gpus.list.push_back({names[g], {1000}, addresses[g]});
  }
  gpus.peers.assign(names.size(), std::vector<bool>(names.size(), true));
  return gpus;
}

TEST(GpuChoice, ModelsDecideWhichGpuStandsForADevice) {
  const std::vector<WantedGpu> wanted{{"fast", "H100 SXM", {10}}, {"slow", "Tesla V100", {10}}};
  EXPECT_EQ(ChooseGpus(wanted, {}, Named({"NVIDIA H100 80GB HBM3", "Tesla V100-SXM2"}), false),
            (std::vector{0, 1}));
  EXPECT_EQ(ChooseGpus(wanted, {}, Named({"V100", "A40", "NVIDIA H100"}), false),
            (std::vector{2, 0}));
  EXPECT_TRUE(ChooseGpus(wanted, {}, Named({"H100"}), false).empty());
  EXPECT_EQ(ChooseGpus(wanted, {}, Named({"A40", "A40"}), false), (std::vector{0, 1}));
}

TEST(GpuChoice, GpusThatAreAlikeAreTakenInTheOrderOfTheBus) {
  const std::vector<WantedGpu> wanted{{"gpu0", "H200", {10}}, {"gpu1", "H200", {10}}};
  const Gpus gpus =
      Named({"H200", "H200", "H200"}, {"0000:9a:00.0", "0000:17:00.0", "0000:3b:00.0"});
  EXPECT_EQ(ChooseGpus(wanted, {}, gpus, false), (std::vector{1, 2}));
  EXPECT_EQ(ChooseGpus(wanted, {}, gpus, true), (std::vector{0, 1}));
}

TEST(GpuChoice, MemoryCountsMoreThanModelsAndPeersLess) {
  std::vector<WantedGpu> wanted{{"gpu0", "A40", {1500}}, {"gpu1", "A40", {10}}};
  Gpus gpus = Named({"A40", "H200"});
  gpus.list[1].memory = {2000};
  EXPECT_EQ(ChooseGpus(wanted, {}, gpus, false), (std::vector{1, 0}));
  wanted[0].arena = {10};
  gpus = Named({"A40", "A40", "A40"});
  gpus.peers = {{true, false, false}, {false, true, true}, {false, true, true}};
  EXPECT_EQ(ChooseGpus(wanted, {{0, 1}}, gpus, false), (std::vector{1, 2}));
  EXPECT_EQ(ChooseGpus(wanted, {}, gpus, false), (std::vector{0, 1}));
}

TEST(GpuChoice, SixteenGpusOfOtherKindsAreChosenAtOnce) {
  std::vector<WantedGpu> wanted(16, {"gpu", "H100", {10}});
  Pairs joined;
  for (std::size_t a = 0; a < 16; ++a) {
    for (std::size_t b = a + 1; b < 16; ++b) joined.insert({a, b});
  }
  Gpus gpus = Named(std::vector<std::string>(16, "A40"));
  gpus.peers.assign(16, std::vector<bool>(16, false));
  EXPECT_EQ(ChooseGpus(wanted, joined, gpus, false).size(), 16U);
}

TEST(Machine, OtherModels) {
  const char* topology = R"({"devices": [{"name": "gpu0", "model": "H200"},
                                         {"name": "gpu1", "model": "A40"}]})";
  ExpectOne(Told(Cuda(2, 10, topology), TwoGpus(false)),
            "\"gpu1\" is A40 there, and GPU 1 (PCI ), which stands for it, is H200");
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
