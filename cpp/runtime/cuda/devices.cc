#include "runtime/cuda/devices.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/cores.h"
#include "runtime/cuda/gpus.h"
#include "runtime/cuda/handles.h"
#include "runtime/cuda/numa.h"
#include "runtime/cuda/peers.h"
#include "runtime/stages.h"

namespace tvm_sched::runtime::cuda {

namespace {

constexpr const char* kMapping =
    "; several devices may share a GPU: configure(devices=[0, 0, ...]) says which GPU each takes";

std::vector<int> Choose(int count, std::vector<int> gpus, int present) {
  if (gpus.empty()) {
    if (present < count) {
      throw CudaError("the plan is for " + std::to_string(count) + " GPUs, and this machine has " +
                      std::to_string(present) + kMapping);
    }
    gpus.resize(count);
    std::iota(gpus.begin(), gpus.end(), 0);
  }
  if (static_cast<int>(gpus.size()) != count) {
    throw std::invalid_argument("options.devices names " + std::to_string(gpus.size()) +
                                " GPUs, expected one for each of the plan's " +
                                std::to_string(count) + " devices");
  }
  for (int gpu : gpus) {
    if (gpu >= 0 && gpu < present) continue;
    throw std::invalid_argument("options.devices names GPU " + std::to_string(gpu) +
                                ", and this machine has " + std::to_string(present) + ", from 0");
  }
  return gpus;
}

/// Start a thread, if the system has one.
template <typename Work>
bool Start(std::vector<std::jthread>* threads, const Work& work) {
  try {
    threads->emplace_back(work);
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

}  // namespace

Devices::Devices(int count, std::vector<int> gpus) {
  int present = 0;
  Check(Driver().DeviceGetCount(&present), "counting the GPUs failed");
  gpus_ = Choose(count, std::move(gpus), present);
  contexts_.resize(present);
  nodes_.assign(present, -1);
  OpenGpus();
  ConnectPeers();
}

/// All at once: each takes some tenths of a second.
void Devices::OpenGpus() {
  const std::set<int> used(gpus_.begin(), gpus_.end());
  std::vector<std::exception_ptr> failures(used.size());
  std::vector<std::jthread> threads;
  std::size_t k = 0;
  for (int gpu : used) {
    const auto open = [this, gpu, &failure = failures[k++]] {
      try {
        OpenGpu(gpu);
      } catch (...) {
        failure = std::current_exception();
      }
    };
    if (k == used.size() || !Start(&threads, open)) open();
  }
  threads.clear();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

void Devices::OpenGpu(int gpu) {
  const StageTimer timer("open GPU " + std::to_string(gpu));
  // The primary context, which CUDA's runtime and every library shares. It is kept to the end of
  // the process: opening it again would cost a second, and memory may outlive this object.
  DeviceId id = 0;
  Check(Driver().DeviceGet(&id, gpu), "GPU " + std::to_string(gpu) + " cannot be opened");
  Check(Driver().PrimaryContextRetain(&contexts_[gpu], id),
        "GPU " + std::to_string(gpu) + " cannot be used");
  nodes_[gpu] = NodeOfPciDevice(PciAddress(id));
}

bool Devices::All(int attribute) const {
  return std::all_of(gpus_.begin(), gpus_.end(), [&](int gpu) {
    DeviceId id = 0;
    int value = 0;
    return Driver().DeviceGet(&id, gpu) == kSuccess &&
           Driver().DeviceGetAttribute(&value, attribute, id) == kSuccess && value != 0;
  });
}

void Devices::ConnectPeers() {
  peers_.assign(contexts_.size(), std::vector<bool>(contexts_.size()));
  straight_ = peers_;
  const PeerPolicy policy = PeerPolicyFromEnvironment();
  const std::set<int> used(gpus_.begin(), gpus_.end());
  if (policy == PeerPolicy::kNever || used.size() < 2) return;
  for (int gpu : used) {
    for (int other : used) {
      peers_[gpu][other] = straight_[gpu][other] = gpu != other && Connect(gpu, other);
    }
  }
  if (policy == PeerPolicy::kTrust) return;
  const StageTimer timer("peers");
  const auto device = [&](int gpu) {
    return static_cast<int>(std::find(gpus_.begin(), gpus_.end(), gpu) - gpus_.begin());
  };
  for (int gpu : used) {
    for (int other : used) {
      if (!peers_[gpu][other]) continue;
      const PeerAccess access = TryPeer(*this, device(gpu), device(other));
      peers_[gpu][other] = access.right;
      straight_[gpu][other] = access.straight;
    }
  }
}

bool Devices::Connect(int gpu, int other) const {
  int reachable = 0;
  Check(Driver().DeviceCanAccessPeer(&reachable, static_cast<DeviceId>(gpu),
                                     static_cast<DeviceId>(other)),
        "asking for peer access failed");
  if (reachable == 0) return false;
  EnterGpu(gpu);
  const Result result = Driver().ContextEnablePeerAccess(contexts_[other], 0);
  // A GPU has a limited number of peers; beyond it, copies are staged.
  return result == kSuccess || result == kPeerAccessAlreadyEnabled;
}

void Devices::EnterGpu(int gpu) const {
  Check(Driver().ContextSetCurrent(contexts_[gpu]), "a GPU's context cannot be entered");
}

bool Devices::Uses(int gpu) const {
  return gpu >= 0 && gpu < static_cast<int>(contexts_.size()) && contexts_[gpu] != nullptr;
}

std::shared_ptr<std::byte> Devices::AllocateOnGpu(int gpu, Bytes size) const {
  EnterGpu(gpu);
  DevicePointer address = 0;
  // At least one byte, so that an empty arena has an address of its own.
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(size.count, 1));
  const Result result = Driver().MemoryAllocate(&address, count);
  if (result == kOutOfMemory) {
    std::size_t free = 0, total = 0;
    Driver().MemoryInfo(&free, &total);
    const auto sharing = std::count(gpus_.begin(), gpus_.end(), gpu);
    throw CudaMemoryError(
        "GPU " + std::to_string(gpu) + " has " + std::to_string(free) + " of " +
        std::to_string(total) + " bytes free, and " + std::to_string(count) + " are needed" +
        (sharing > 1 ? "; " + std::to_string(sharing) + " of the plan's devices share it" : ""));
  }
  Check(result, "memory of GPU " + std::to_string(gpu) + " cannot be had");
  return {reinterpret_cast<std::byte*>(address), [context = contexts_[gpu]](std::byte* memory) {
            // A process that ends may have closed the driver already; then this does nothing.
            try {
              const ContextGuard guard;
              if (Driver().ContextSetCurrent(context) == kSuccess) {
                Driver().MemoryFree(reinterpret_cast<DevicePointer>(memory));
              }
            } catch (const CudaError&) {
            }
          }};
}

std::shared_ptr<std::byte> Devices::AllocateCopy(int device, const std::byte* pinned,
                                                 Bytes size) const {
  std::shared_ptr<std::byte> memory = Allocate(device, size);
  CopyAndWait(Gpu(device), memory.get(), pinned, size);
  return memory;
}

void Devices::CopyAndWait(int gpu, std::byte* to, const std::byte* from, Bytes size) const {
  if (size.count == 0) return;
  EnterGpu(gpu);
  WithStream(MakeStream(0), [&](Stream stream) {
    Check(Driver().CopyAsync(reinterpret_cast<DevicePointer>(to),
                             reinterpret_cast<DevicePointer>(from),
                             static_cast<std::size_t>(size.count), stream),
          "the copy was refused");
    Check(Driver().StreamSynchronize(stream), "the copy failed");
  });
}

std::shared_ptr<std::byte> Devices::AllocateHost(Bytes size, int near) const {
  if (!gpus_.empty()) Enter(0);
  const NearNode placed(gpus_.empty() ? -1 : nodes_[Gpu(near)]);
  void* address = nullptr;
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(size.count, 1));
  Check(Driver().HostAllocate(&address, count, kHostAllocPortable | kHostAllocDeviceMap),
        std::to_string(count) + " bytes of pinned host memory cannot be had");
  return {static_cast<std::byte*>(address), [](std::byte* memory) {
            try {
              Driver().HostFree(memory);
            } catch (const CudaError&) {
            }
          }};
}

void CopyOnHost(std::byte* to, const std::byte* from, Bytes size) {
  const auto count = static_cast<std::size_t>(size.count);
  NoteHostAccesses({{from, count, 0}, {to, count, 1}});
  constexpr std::int64_t kPart = 2 << 20, kMostThreads = 8;
  static const std::int64_t most = std::min<std::int64_t>(Cores(), kMostThreads);
  const std::int64_t parts = std::clamp<std::int64_t>(size.count / kPart, 1, most);
  const std::int64_t each = (size.count + parts - 1) / parts;
  const auto copy = [=](std::int64_t part) {
    const std::int64_t begin = std::min(part * each, size.count);
    std::copy_n(from + begin, std::min(each, size.count - begin), to + begin);
  };
  std::vector<std::jthread> threads;
  for (std::int64_t part = 1; part < parts; ++part) {
    if (!Start(&threads, [=] { copy(part); })) copy(part);
  }
  copy(0);
}

}  // namespace tvm_sched::runtime::cuda
