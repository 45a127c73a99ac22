// Measures the rates of copies, by events before and after them.
#include <algorithm>
#include <vector>

#include "runtime/cuda/devices.h"
#include "runtime/cuda/gpus.h"
#include "runtime/cuda/handles.h"
#include "runtime/cuda/peers.h"
#include "runtime/cuda/staged_copy.h"

namespace tvm_sched::runtime::cuda {

namespace {

constexpr int kRepeats = 5;

/// Copies of one direction, on a stream of their own.
class Direction {
 public:
  Direction(const std::byte* to, const std::byte* from, Bytes size)
      : to_(reinterpret_cast<DevicePointer>(to)),
        from_(reinterpret_cast<DevicePointer>(from)),
        size_(static_cast<std::size_t>(size.count)),
        stream_(MakeStream(0)),
        begin_(MakeEvent(kEventDefault)),
        end_(MakeEvent(kEventDefault)) {}

  /// `count` copies; times are of all of them.
  void Issue(int count) {
    count_ = count;
    Check(Driver().EventRecord(begin_.get(), stream_.get()), "a copy cannot be timed");
    for (int k = 0; k < count; ++k) {
      Check(Driver().CopyAsync(to_, from_, size_, stream_.get()), "a copy was refused");
    }
    Check(Driver().EventRecord(end_.get(), stream_.get()), "a copy cannot be timed");
  }

  double Rate() {
    Check(Driver().StreamSynchronize(stream_.get()), "a copy failed");
    float milliseconds = 0;
    Check(Driver().EventElapsedTime(&milliseconds, begin_.get(), end_.get()),
          "a copy cannot be timed");
    return static_cast<double>(size_) * count_ / (milliseconds * 1e-3);
  }

 private:
  DevicePointer to_, from_;
  std::size_t size_;
  int count_ = 1;
  StreamHandle stream_;
  EventHandle begin_, end_;
};

/// Median bytes a second of each direction, while the others copy, too.
std::vector<double> Rates(const std::vector<Direction*>& directions) {
  // Several copies at a time where there are several directions, so that none copies alone for
  // long.
  const int count = directions.size() > 1 ? 4 : 1;
  std::vector<std::vector<double>> found(directions.size());
  for (int repeat = 0; repeat <= kRepeats; ++repeat) {
    for (Direction* direction : directions) direction->Issue(count);
    for (std::size_t w = 0; w < directions.size(); ++w) {
      const double rate = directions[w]->Rate();
      if (repeat > 0) found[w].push_back(rate);  // the first one warms up
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& rates : found) {
    std::nth_element(rates.begin(), rates.begin() + kRepeats / 2, rates.end());
    medians.push_back(rates[kRepeats / 2]);
  }
  return medians;
}

/// Median bytes a second of staged copies from device 0 to device 1.
double StagedRate(const Devices& devices, const std::byte* to, const std::byte* from, Bytes size) {
  StagedCopy copy(devices, 0, 1);
  devices.Enter(1);
  const StreamHandle receiver = MakeStream(0);
  const EventHandle begin = MakeEvent(kEventDefault), end = MakeEvent(kEventDefault);
  std::vector<double> rates;
  for (int repeat = 0; repeat <= kRepeats; ++repeat) {
    Check(Driver().EventRecord(begin.get(), receiver.get()), "a copy cannot be timed");
    copy.Issue(reinterpret_cast<DevicePointer>(to), reinterpret_cast<DevicePointer>(from), size,
               receiver.get());
    Check(Driver().EventRecord(end.get(), receiver.get()), "a copy cannot be timed");
    Check(Driver().StreamSynchronize(receiver.get()), "a copy failed");
    float milliseconds = 0;
    Check(Driver().EventElapsedTime(&milliseconds, begin.get(), end.get()),
          "a copy cannot be timed");
    if (repeat > 0) rates.push_back(static_cast<double>(size.count) / (milliseconds * 1e-3));
  }
  std::nth_element(rates.begin(), rates.begin() + kRepeats / 2, rates.end());
  return rates[kRepeats / 2];
}

Bytes Fitting(int gpu, Bytes size) {
  constexpr std::int64_t kParts = 4;  // of what is free, two are used
  return {std::clamp<std::int64_t>(FreeMemory(gpu).count / kParts, 1, size.count)};
}

}  // namespace

Bytes FreeMemory(int gpu) {
  const ContextGuard guard;
  Devices(1, {gpu}).Enter(0);
  std::size_t free = 0, total = 0;
  Check(Driver().MemoryInfo(&free, &total), "asking for free memory failed");
  return {static_cast<std::int64_t>(free)};
}

CopyRates MeasureCopies(int gpu, Bytes size) {
  const ContextGuard guard;
  const Devices devices(1, {gpu});
  size = Fitting(gpu, size);
  const auto there = devices.Allocate(0, size), beside = devices.Allocate(0, size);
  const auto here = devices.AllocateHost(size), back = devices.AllocateHost(size);
  devices.Enter(0);
  Direction down(there.get(), here.get(), size), up(back.get(), beside.get(), size);
  Direction within(there.get(), beside.get(), size);
  CopyRates rates;
  rates.from_host = Rates({&down})[0];
  rates.to_host = Rates({&up})[0];
  const std::vector<double> both = Rates({&down, &up});
  rates.from_host_both = both[0];
  rates.to_host_both = both[1];
  rates.within = Rates({&within})[0];
  return rates;
}

PeerRates MeasurePeerCopies(int from, int to, Bytes size) {
  const ContextGuard guard;
  const Devices devices(2, {from, to});
  size = std::min(Fitting(from, size), Fitting(to, size));
  const auto source = devices.Allocate(0, size), target = devices.Allocate(1, size);
  PeerRates rates;
  const auto rate = [&](int device) {
    devices.Enter(device);
    Direction direction(target.get(), source.get(), size);
    return Rates({&direction})[0];
  };
  if (devices.Joined(to, from)) rates.pulled = rate(1);
  if (devices.Joined(from, to)) rates.pushed = rate(0);
  if (devices.Joined(to, from)) TryPeer(devices, 1, 0);  // also where peers are trusted
  rates.right = KnownPeer(devices, 1, 0).right;
  rates.staged = StagedRate(devices, target.get(), source.get(), size);
  return rates;
}

}  // namespace tvm_sched::runtime::cuda
