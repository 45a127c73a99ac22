#include "runtime/cuda/peers.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "runtime/cuda/devices.h"
#include "runtime/cuda/handles.h"

namespace tvm_sched::runtime::cuda {

namespace {

constexpr Bytes kTried{4 << 20};
constexpr int kRounds = 3;
constexpr double kClearly = 1.25;  // times as slow: noise is smaller

/// Bytes a second of copies of kTried from one place to another, the best of a few.
double RateOf(const Devices& devices, int device, const std::byte* to, const std::byte* from) {
  devices.Enter(device);
  const EventHandle begin = MakeEvent(kEventDefault), end = MakeEvent(kEventDefault);
  float least = 0;
  WithStream(MakeStream(0), [&](Stream stream) {
    for (int round = 0; round <= kRounds; ++round) {
      Check(Driver().EventRecord(begin.get(), stream), "a copy cannot be timed");
      Check(Driver().CopyAsync(reinterpret_cast<DevicePointer>(to),
                               reinterpret_cast<DevicePointer>(from),
                               static_cast<std::size_t>(kTried.count), stream),
            "a copy was refused");
      Check(Driver().EventRecord(end.get(), stream), "a copy cannot be timed");
      Check(Driver().StreamSynchronize(stream), "a copy failed");
      float milliseconds = 0;
      Check(Driver().EventElapsedTime(&milliseconds, begin.get(), end.get()),
            "a copy cannot be timed");
      // The first one warms up.
      if (round == 1 || (round > 1 && milliseconds < least)) least = milliseconds;
    }
  });
  return static_cast<double>(kTried.count) / (std::max(least, 1e-6f) * 1e-3);
}

/// Bytes of which no part is like another, and others for each pair.
void Fill(std::byte* to, std::uint32_t seed) {
  NoteHostAccesses({{to, static_cast<unsigned long long>(kTried.count), 1}});
  for (std::int64_t k = 0; k < kTried.count; ++k) {
    seed = seed * 1664525u + 1013904223u;
    to[k] = static_cast<std::byte>(seed >> 24);
  }
}

PeerAccess Measure(const Devices& devices, int receiver, int sender) {
  const auto there = devices.Allocate(sender, kTried), here = devices.Allocate(receiver, kTried);
  const auto sent = devices.AllocateHost(kTried), found = devices.AllocateHost(kTried);
  Fill(sent.get(),
       static_cast<std::uint32_t>(1 + devices.Gpu(receiver) * 256 + devices.Gpu(sender)));
  devices.CopyAndWait(devices.Gpu(sender), there.get(), sent.get(), kTried);
  const double up = RateOf(devices, sender, found.get(), there.get());
  const double down = RateOf(devices, receiver, here.get(), sent.get());
  Fill(found.get(), 0);
  devices.CopyAndWait(devices.Gpu(receiver), here.get(), found.get(), kTried);
  PeerAccess access;
  access.staged_rate = std::min(up, down);  // both ways at once, in chunks
  access.rate = RateOf(devices, receiver, here.get(), there.get());
  devices.CopyAndWait(devices.Gpu(receiver), found.get(), here.get(), kTried);
  NoteHostAccesses({{found.get(), static_cast<unsigned long long>(kTried.count), 0},
                    {sent.get(), static_cast<unsigned long long>(kTried.count), 0}});
  access.right = std::memcmp(found.get(), sent.get(), static_cast<std::size_t>(kTried.count)) == 0;
  access.straight = access.right && kClearly * access.rate >= access.staged_rate;
  return access;
}

void Tell(const PeerAccess& access, int receiver, int sender) {
  if (access.right) return;
  std::fprintf(stderr,
               "tvm_sched: GPU %d reads wrong bytes from the memory of GPU %d, although the driver "
               "says that they are peers; copies between them go through the host. See what "
               "`tvm-sched doctor` says of the IOMMU and of this driver.\n",
               receiver, sender);
}

struct Known {
  std::mutex mutex;
  std::map<std::pair<Context, Context>, PeerAccess> pairs;  // by receiver and sender
};

Known& TheKnown() {
  static Known known;
  return known;
}

}  // namespace

PeerPolicy PeerPolicyFromEnvironment() {
  const char* given = std::getenv("TVM_SCHED_PEERS");
  const std::string word = given == nullptr ? "" : given;
  if (word.empty() || word == "try") return PeerPolicy::kTry;
  if (word == "trust") return PeerPolicy::kTrust;
  if (word == "never") return PeerPolicy::kNever;
  throw std::invalid_argument("TVM_SCHED_PEERS is \"" + word +
                              "\", expected \"try\", \"trust\" or \"never\"");
}

PeerAccess TryPeer(const Devices& devices, int receiver, int sender) {
  Known& known = TheKnown();
  const std::pair key{devices.ContextOf(receiver), devices.ContextOf(sender)};
  const std::lock_guard lock(known.mutex);
  const auto found = known.pairs.find(key);
  if (found != known.pairs.end()) return found->second;
  try {
    const PeerAccess access = Measure(devices, receiver, sender);
    Tell(access, devices.Gpu(receiver), devices.Gpu(sender));
    return known.pairs[key] = access;
  } catch (const CudaMemoryError&) {
    return {};  // a later one may find room
  }
}

PeerAccess KnownPeer(const Devices& devices, int receiver, int sender) {
  Known& known = TheKnown();
  const std::lock_guard lock(known.mutex);
  const auto found = known.pairs.find({devices.ContextOf(receiver), devices.ContextOf(sender)});
  return found == known.pairs.end() ? PeerAccess{} : found->second;
}

}  // namespace tvm_sched::runtime::cuda
