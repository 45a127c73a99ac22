#include "search/region_ports.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace tvm_sched::search {
namespace {

using Tensor = PortRegion::Tensor;

/// Something that a device or port does from `head` on for `time`; `tail` follows.
struct Job {
  std::int64_t head, time, tail;
};

/// Carlier's bound (EJOR 11, 1982): jobs one after another, over sets by head and tail.
std::int64_t InTurn(std::vector<Job>& jobs) {
  std::sort(jobs.begin(), jobs.end(), [](const Job& a, const Job& b) { return a.head > b.head; });
  std::int64_t longest = 0;
  for (const Job& least : jobs) {
    std::int64_t work = 0;
    for (const Job& job : jobs) {
      if (job.tail < least.tail) continue;
      work += job.time;
      longest = std::max(longest, job.head + work + least.tail);
    }
  }
  return longest;
}

class Search {
 public:
  Search(const PortRegion& region, std::int64_t states)
      : region_(region), states_(states), count_(region.time.size()), before_(count_), of_(count_) {
    const auto tensors = static_cast<std::int32_t>(region.tensors.size());
    for (std::int32_t t = 0; t < tensors; ++t) {
      const Tensor& tensor = region.tensors[t];
      for (const std::int32_t reader : tensor.readers) before_[reader].push_back(t);
      if (tensor.maker >= 0) of_[tensor.maker].push_back(t);
    }
    device_.assign(count_, 0);
    head_.assign(count_, 0);
    start_.assign(count_, 0);
    tail_.assign(count_, 0);
    copies_.assign(tensors, std::vector<std::int32_t>(region.devices, 0));
    arrivals_.resize(tensors);
    shortest_.assign(count_, 0);
    for (std::size_t o = count_; o-- > 0;) {
      for (const std::int32_t t : before_[o]) {
        const std::int32_t maker = region.tensors[t].maker;
        if (maker < 0) continue;
        shortest_[maker] = std::max(shortest_[maker], region.time[o] + shortest_[o]);
      }
    }
  }

  std::int64_t Run() {
    Place(0, 0);
    return states_ < 0 ? -1 : best_;
  }

 private:
  std::int32_t DeviceOf(std::int32_t maker) const { return maker < 0 ? 0 : device_[maker]; }

  /// Place operator `o` and the later ones; devices up to `last` are in use.
  void Place(std::size_t o, std::int32_t last) {
    if (o == count_) {
      for (std::size_t t = 0; t < region_.tensors.size(); ++t) FindArrivals(t);
      Order(0);
      return;
    }
    for (std::int32_t d = 0; d <= std::min(last + 1, region_.devices - 1); ++d) {
      if (--states_ < 0) return;
      device_[o] = d;
      head_[o] = 0;
      for (const std::int32_t t : before_[o]) {
        const Tensor& tensor = region_.tensors[t];
        const std::int64_t copy = DeviceOf(tensor.maker) == d ? 0 : tensor.copy;
        head_[o] = std::max(head_[o], End(tensor.maker) + copy);
      }
      if (head_[o] + region_.time[o] + shortest_[o] < best_) Place(o + 1, std::max(last, d));
    }
  }

  std::int64_t End(std::int32_t maker) const {
    return maker < 0 ? 0 : head_[maker] + region_.time[maker];
  }

  std::int64_t EndOf(std::int32_t maker) const {
    return maker < 0 ? 0 : start_[maker] + region_.time[maker];
  }

  /// Find the devices to which a tensor is copied.
  void FindArrivals(std::size_t t) {
    const Tensor& tensor = region_.tensors[t];
    std::vector<std::int32_t>& to = arrivals_[t];
    to.clear();
    for (const std::int32_t reader : tensor.readers) {
      const std::int32_t d = device_[reader];
      if (d != DeviceOf(tensor.maker) && std::find(to.begin(), to.end(), d) == to.end()) {
        to.push_back(d);
      }
    }
    std::sort(to.begin(), to.end());
  }

  /// Try all orders in which tensor `t` and the later ones arrive at their devices.
  void Order(std::size_t t) {
    if (t == region_.tensors.size()) {
      if (--states_ >= 0) best_ = std::min(best_, Time());
      return;
    }
    std::vector<std::int32_t>& to = arrivals_[t];
    do {
      std::int32_t steps = 1;
      for (std::size_t k = 0; k < to.size(); ++k) {
        if (k + 1 >= std::size_t{1} << steps) ++steps;
        copies_[t][to[k]] = steps;
      }
      Order(t + 1);
    } while (states_ >= 0 && std::next_permutation(to.begin(), to.end()));
  }

  /// Least time from the end of a tensor's copy to a device to the end of the region.
  std::int64_t Follows(const Tensor& tensor, std::int32_t device) const {
    std::int64_t longest = 0;
    for (const std::int32_t reader : tensor.readers) {
      if (device_[reader] != device) continue;
      longest = std::max(longest, region_.time[reader] + tail_[reader]);
    }
    return longest;
  }

  /// Return the time that a placement and orders of arrival take at least.
  std::int64_t Time() {
    for (std::size_t o = 0; o < count_; ++o) {
      start_[o] = 0;
      for (const std::int32_t t : before_[o]) {
        const Tensor& tensor = region_.tensors[t];
        const bool here = DeviceOf(tensor.maker) == device_[o];
        const std::int64_t copies = here ? 0 : copies_[t][device_[o]] * tensor.copy;
        start_[o] = std::max(start_[o], EndOf(tensor.maker) + copies);
      }
    }
    std::int64_t longest = start_[count_ - 1] + region_.time[count_ - 1];
    if (longest >= best_) return longest;
    for (std::size_t o = count_; o-- > 0;) {
      tail_[o] = 0;
      for (const std::int32_t t : of_[o]) {
        const Tensor& tensor = region_.tensors[t];
        for (const std::int32_t reader : tensor.readers) {
          const bool here = device_[reader] == device_[o];
          const std::int64_t copies = here ? 0 : copies_[t][device_[reader]] * tensor.copy;
          tail_[o] = std::max(tail_[o], copies + region_.time[reader] + tail_[reader]);
        }
      }
    }
    for (std::int32_t d = 0; d < region_.devices; ++d) {
      jobs_.clear();
      for (std::size_t o = 0; o < count_; ++o) {
        if (device_[o] == d) jobs_.push_back({start_[o], region_.time[o], tail_[o]});
      }
      longest = std::max(longest, InTurn(jobs_));
      in_.clear();
      out_.clear();
      for (std::size_t t = 0; t < region_.tensors.size(); ++t) {
        const Tensor& tensor = region_.tensors[t];
        const std::vector<std::int32_t>& to = arrivals_[t];
        if (to.empty()) continue;
        if (DeviceOf(tensor.maker) == d) {
          out_.push_back({EndOf(tensor.maker), tensor.copy, Follows(tensor, to.front())});
        }
        if (std::find(to.begin(), to.end(), d) != to.end()) {
          const std::int64_t start = EndOf(tensor.maker) + (copies_[t][d] - 1) * tensor.copy;
          in_.push_back({start, tensor.copy, Follows(tensor, d)});
        }
      }
      longest = std::max({longest, InTurn(in_), InTurn(out_)});
      if (longest >= best_) return longest;
    }
    return longest;
  }

  const PortRegion& region_;
  std::int64_t states_;
  const std::size_t count_;
  std::int64_t best_ = std::numeric_limits<std::int64_t>::max();
  /// By operator: the tensors of the region that it reads, and those that it makes.
  std::vector<std::vector<std::int32_t>> before_, of_;
  /// By operator: its device; a least time before its start while operators are placed;
  /// least times before its start and after its end for given arrivals, and the latter without
  /// copies.
  std::vector<std::int32_t> device_;
  std::vector<std::int64_t> head_, start_, tail_, shortest_;
  /// By tensor: copies one after another until it is on a device; devices by arrival.
  std::vector<std::vector<std::int32_t>> copies_, arrivals_;
  std::vector<Job> jobs_, in_, out_;
};

}  // namespace

std::int64_t LeastTimeWithPorts(const PortRegion& region, std::int64_t states) {
  return Search(region, states).Run();
}

}  // namespace tvm_sched::search
