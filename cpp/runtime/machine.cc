#include "runtime/machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include "runtime/cores.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/gpus.h"
#include "runtime/gpu_choice.h"

namespace tvm_sched::runtime {

namespace {

Gpus FindGpus() {
  Gpus gpus;
  try {
    for (const cuda::GpuFacts& facts : cuda::ListGpus()) {
      gpus.list.push_back({facts.name, facts.memory, facts.address});
    }
    gpus.peers = cuda::PeerMatrix();
    const char* listed = std::getenv("CUDA_VISIBLE_DEVICES");
    gpus.listed = listed != nullptr && *listed != '\0';
  } catch (const cuda::CudaMissingError& error) {
    gpus = {{}, {}, error.reason()};
  } catch (const cuda::CudaError& error) {
    gpus = {{}, {}, error.what()};
  }
  return gpus;
}

std::vector<WantedGpu> ReadNeeded(const JsonCursor& needs) {
  std::vector<WantedGpu> devices;
  const auto list = needs.OptionalField("devices");
  if (!list) return devices;
  for (const JsonCursor& item : list->Items()) {
    const auto arena = item.OptionalField("arena_bytes");
    const auto extra = item.OptionalField("extra_bytes");
    const std::int64_t bytes =
        (arena ? arena->NonNegative() : 0) + (extra ? extra->NonNegative() : 0);
    devices.push_back({item.Field("name").String(), "", {bytes}});
  }
  return devices;
}

/// The same with the models that the topology names.
std::vector<WantedGpu> ReadWanted(const JsonCursor& metadata) {
  std::vector<WantedGpu> wanted = ReadNeeded(metadata.Field("needs"));
  const auto topology = metadata.OptionalField("topology_description");
  const auto list = topology ? topology->OptionalField("devices") : std::nullopt;
  if (!list) return wanted;
  for (const JsonCursor& item : list->Items()) {
    const auto model = item.OptionalField("model");
    const std::string name = item.Field("name").String();
    for (WantedGpu& device : wanted) {
      if (model && device.name == name) device.model = model->String();
    }
  }
  return wanted;
}

std::string Count(std::size_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

void CompareCores(const std::vector<WantedGpu>& devices, const Machine& machine,
                  std::vector<std::string>* found) {
  if (static_cast<int>(devices.size()) > machine.cores) {
    found->push_back("it is scheduled over " + std::to_string(devices.size()) +
                     " CPU devices, and this process may use " +
                     Count(static_cast<std::size_t>(machine.cores), "core") +
                     ", so devices take turns: schedule it for cpu" +
                     std::to_string(machine.cores) + ", or give the process more cores");
  }
  Bytes memory;
  for (const WantedGpu& device : devices) memory = memory + device.arena;
  if (memory > machine.memory) {
    found->push_back("it needs " + std::to_string(memory.count) +
                     " bytes of memory for its buffers, and this machine has " +
                     std::to_string(machine.memory.count) + ": schedule it for smaller inputs");
  }
}

/// Pairs of devices, as positions in the list, between which the topology copies directly.
Pairs JoinedPairs(const JsonCursor& topology, const std::vector<WantedGpu>& devices) {
  Pairs pairs;
  auto join_all = [&](const std::set<std::string>& names) {
    for (std::size_t a = 0; a < devices.size(); ++a) {
      for (std::size_t b = a + 1; b < devices.size(); ++b) {
        if (names.count(devices[a].name) && names.count(devices[b].name)) pairs.insert({a, b});
      }
    }
  };
  const auto peer_access = topology.OptionalField("peer_access");
  if (peer_access && peer_access->Bool()) {
    std::set<std::string> all;
    for (const WantedGpu& device : devices) all.insert(device.name);
    join_all(all);
  }
  for (const char* kind : {"links", "switches"}) {
    const auto list = topology.OptionalField(kind);
    if (!list) continue;
    for (const JsonCursor& item : list->Items()) {
      std::set<std::string> names;
      for (const JsonCursor& name : item.Field("devices").Items()) names.insert(name.String());
      join_all(names);
    }
  }
  return pairs;
}

void ComparePeers(const JsonCursor& topology, const std::vector<WantedGpu>& devices,
                  const std::vector<int>& chosen, const Gpus& gpus,
                  std::vector<std::string>* found) {
  std::string pairs;
  for (const auto& [a, b] : JoinedPairs(topology, devices)) {
    const int first = chosen[a], second = chosen[b];
    if (gpus.peers[first][second] && gpus.peers[second][first]) continue;
    pairs += (pairs.empty() ? "\"" : ", \"") + devices[a].name + "\" and \"" + devices[b].name +
             "\" (GPUs " + std::to_string(first) + " and " + std::to_string(second) + ")";
  }
  if (pairs.empty()) return;
  found->push_back("its schedule counts on copies straight between " + pairs +
                   ", and these have no peer access here, so that copies take the way through host "
                   "memory: schedule it for a topology without these links and with peer_access = "
                   "false");
}

void CompareModels(const std::vector<WantedGpu>& devices, const std::vector<int>& chosen,
                   const Gpus& gpus, std::vector<std::string>* found) {
  std::string others;
  for (std::size_t d = 0; d < devices.size(); ++d) {
    const Gpu& gpu = gpus.list[chosen[d]];
    if (SameModel(devices[d].model, gpu.name)) continue;
    others += (others.empty() ? "\"" : ", \"") + devices[d].name + "\" is " + devices[d].model +
              " there, and GPU " + std::to_string(chosen[d]) + " (PCI " + gpu.address +
              "), which stands for it, is " + gpu.name;
  }
  if (others.empty()) return;
  found->push_back("it is scheduled for other GPUs: " + others +
                   "; so its predicted times do not hold: schedule it for this machine's topology, "
                   "which tvm-sched topology detect describes");
}

void CompareGpus(const JsonCursor& metadata, const Gpus& gpus, std::vector<std::string>* found) {
  const std::vector<WantedGpu> devices = ReadWanted(metadata);
  if (gpus.list.empty()) {
    const std::string why = gpus.trouble.empty() ? "the driver finds none" : gpus.trouble;
    found->push_back("it runs on " + Count(devices.size(), "GPU") + ", and " + why +
                     ": run it on a machine with NVIDIA GPUs and their driver, or schedule it for "
                     "cpuN or for emulated devices");
    return;
  }
  if (gpus.list.size() < devices.size()) {
    found->push_back("it is scheduled over " + Count(devices.size(), "GPU") +
                     ", and this process may use " + std::to_string(gpus.list.size()) +
                     ", so devices share them and runs take longer than predicted: schedule it for "
                     "this machine's topology, or see CUDA_VISIBLE_DEVICES");
  }
  std::vector<int> chosen = GpusFor(metadata, gpus);
  for (std::size_t d = chosen.size(); d < devices.size(); ++d) {
    chosen.push_back(static_cast<int>(d % gpus.list.size()));
  }
  std::vector<Bytes> load(gpus.list.size());
  for (std::size_t d = 0; d < devices.size(); ++d) {
    load[chosen[d]] = load[chosen[d]] + devices[d].arena;
  }
  for (std::size_t g = 0; g < load.size(); ++g) {
    if (load[g] <= gpus.list[g].memory) continue;
    found->push_back("it needs " + std::to_string(load[g].count) + " bytes on GPU " +
                     std::to_string(g) + " (" + gpus.list[g].name + "), which has " +
                     std::to_string(gpus.list[g].memory.count) +
                     ": schedule it for devices with that much memory");
  }
  CompareModels(devices, chosen, gpus, found);
  const auto topology = metadata.OptionalField("topology_description");
  if (topology) ComparePeers(*topology, devices, chosen, gpus, found);
}

std::string BackendOf(const JsonCursor& metadata) {
  const auto needs = metadata.OptionalField("needs");
  const auto backend = needs ? needs->OptionalField("backend") : std::nullopt;
  return backend ? backend->String() : "";
}

}  // namespace

Machine ThisMachine(bool with_gpus) {
  Machine machine;
  utsname said{};
  if (uname(&said) == 0) machine.architecture = said.machine;
  machine.cores = AllowedCores();
  machine.memory = {sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGE_SIZE)};
  const std::int64_t limit = ReadContainerLimits().memory;
  if (limit > 0) machine.memory.count = std::min(machine.memory.count, limit);
  if (with_gpus) machine.gpus = FindGpus();
  return machine;
}

bool NeedsGpus(const JsonCursor& metadata) { return BackendOf(metadata) == "cuda"; }

std::vector<int> GpusFor(const JsonCursor& metadata, const Gpus& gpus) {
  if (!NeedsGpus(metadata)) return {};
  const std::vector<WantedGpu> wanted = ReadWanted(metadata);
  const auto topology = metadata.OptionalField("topology_description");
  return ChooseGpus(wanted, topology ? JoinedPairs(*topology, wanted) : Pairs{}, gpus, gpus.listed);
}

std::vector<std::string> Differences(const JsonCursor& metadata, const Machine& machine) {
  std::vector<std::string> found;
  const auto made = metadata.OptionalField("machine");
  const auto architecture = made ? made->OptionalField("architecture") : std::nullopt;
  if (architecture && architecture->String() != machine.architecture) {
    found.push_back("it was compiled on " + architecture->String() + ", this machine is " +
                    machine.architecture + ": compile it here, or with this machine's target");
  }
  const std::string backend = BackendOf(metadata);
  if (backend.empty()) return found;
  if (backend == "cpu") CompareCores(ReadNeeded(metadata.Field("needs")), machine, &found);
  if (backend == "cuda") CompareGpus(metadata, machine.gpus, &found);
  return found;
}

}  // namespace tvm_sched::runtime
