#include "runtime/cuda/gpus.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "runtime/cuda/driver.h"

namespace tvm_sched::runtime::cuda {

namespace {

int CountGpus() {
  int count = 0;
  Check(Driver().DeviceGetCount(&count), "counting the GPUs failed");
  return count;
}

DeviceId IdOf(int gpu) {
  DeviceId id = 0;
  Check(Driver().DeviceGet(&id, gpu), "GPU " + std::to_string(gpu) + " cannot be asked");
  return id;
}

/// 0 where the driver does not say.
int Attribute(DeviceId id, int attribute) {
  int value = 0;
  return Driver().DeviceGetAttribute(&value, attribute, id) == kSuccess ? value : 0;
}

using Text = std::array<char, 256>;
constexpr auto kLength = static_cast<int>(std::tuple_size_v<Text>) - 1;

GpuFacts Ask(int gpu) {
  const DeviceId id = IdOf(gpu);
  GpuFacts facts;
  Text text{};
  Check(Driver().DeviceGetName(text.data(), kLength, id), "asking for a GPU's name failed");
  facts.name = text.data();
  facts.address = PciAddress(id);
  std::size_t memory = 0;
  Check(Driver().DeviceTotalMemory(&memory, id), "asking for a GPU's memory failed");
  facts.memory = {static_cast<std::int64_t>(memory)};
  facts.capability = 10 * Attribute(id, kCapabilityMajor) + Attribute(id, kCapabilityMinor);
  facts.multiprocessors = Attribute(id, kMultiprocessors);
  facts.clock_khz = Attribute(id, kClockRate);
  facts.memory_clock_khz = Attribute(id, kMemoryClockRate);
  facts.memory_bits = Attribute(id, kMemoryBusWidth);
  facts.cache = {Attribute(id, kCacheSize)};
  facts.copy_engines = Attribute(id, kCopyEngines);
  facts.compute_mode = Attribute(id, kComputeMode);
  return facts;
}

}  // namespace

std::string PciAddress(DeviceId id) {
  Text text{};
  Check(Driver().DeviceGetPciBusId(text.data(), kLength, id), "asking for a GPU's address failed");
  std::string address = text.data();
  for (char& letter : address) letter = static_cast<char>(std::tolower(letter));
  return address;
}

std::vector<GpuFacts> ListGpus() {
  std::vector<GpuFacts> gpus;
  for (int gpu = 0, count = CountGpus(); gpu < count; ++gpu) gpus.push_back(Ask(gpu));
  return gpus;
}

std::vector<std::vector<bool>> PeerMatrix() {
  const int count = CountGpus();
  std::vector<std::vector<bool>> peers(count, std::vector<bool>(count, true));
  for (int gpu = 0; gpu < count; ++gpu) {
    for (int other = 0; other < count; ++other) {
      if (gpu == other) continue;
      int can = 0;
      Check(Driver().DeviceCanAccessPeer(&can, IdOf(gpu), IdOf(other)),
            "asking for peer access failed");
      peers[gpu][other] = can != 0;
    }
  }
  return peers;
}

int DriverVersion() {
  int version = 0;
  Check(Driver().DriverGetVersion(&version), "asking for the driver's version failed");
  return version;
}

}  // namespace tvm_sched::runtime::cuda
