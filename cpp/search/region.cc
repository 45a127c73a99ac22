#include "search/region.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace tvm_sched::search {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

class Enumeration {
 public:
  Enumeration(const Region& region, std::int64_t nodes)
      : region_(region), nodes_(nodes), before_(region.operators()) {
    for (const Region::Edge& edge : region.edges) before_[edge.to].push_back(&edge);
    FindTails();
    FindTwins();
    place_.assign(region.operators(), 0);
    start_.assign(region.operators(), 0.0);
    time_.assign(region.operators(), 0.0);
    to_pay_.assign(region.operators() + 1, 0.0);
    for (std::size_t o = region.operators(); o-- > 0;) {
      double least = kInfinite;
      for (std::size_t i = 0; i < region.options(); ++i) {
        if (region.time(o, i) < kInfinite) least = std::min(least, region.Price(o, i));
      }
      to_pay_[o] = to_pay_[o + 1] + least;
    }
    used_.assign(region.devices, 0);
  }

  double Run() {
    double longest_path = kInfinite;
    for (std::size_t a = 0; a < region_.devices; ++a) {
      longest_path = std::min(longest_path, first_tail_[a]);
    }
    best_ = kInfinite;
    for (std::size_t a = 0; a < region_.devices && nodes_ > 0; ++a) {
      if (twin_[a] < a) continue;
      first_ = a;
      ++used_[a];
      Place(0, 0.0);
      --used_[a];
    }
    return nodes_ > 0 ? best_ : region_.weight * longest_path + to_pay_[0];
  }

 private:
  /// Longest path from the end of each operator on a device to the end of the region.
  void FindTails() {
    const std::size_t count = region_.operators(), devices = region_.devices;
    tail_ = {count, devices, 0.0};
    first_tail_.assign(devices, 0.0);
    for (std::size_t o = count; o-- > 0;) {
      for (const Region::Edge* edge : before_[o]) {
        for (std::size_t a = 0; a < devices; ++a) {
          double least = kInfinite;
          for (std::size_t b = 0; b < devices; ++b) {
            least = std::min(least, edge->lag(a, b) + Shortest(o, b) + tail_(o, b));
          }
          double& tail = edge->from < 0 ? first_tail_[a] : tail_(edge->from, a);
          tail = std::max(tail, least);
        }
      }
    }
  }

  double Shortest(std::size_t o, std::size_t device) const {
    double least = kInfinite;
    for (std::size_t i = device; i < region_.options(); i += region_.devices) {
      least = std::min(least, region_.time(o, i));
    }
    return least;
  }

  /// For each device the first one that it could change names with.
  void FindTwins() {
    twin_.resize(region_.devices);
    std::iota(twin_.begin(), twin_.end(), std::size_t{0});
    for (std::size_t b = 1; b < region_.devices; ++b) {
      for (std::size_t a = 0; a < b && twin_[b] == b; ++a) {
        if (twin_[a] == a && AreTwins(a, b)) twin_[b] = a;
      }
    }
  }

  bool AreTwins(std::size_t a, std::size_t b) const {
    for (std::size_t o = 0; o < region_.operators(); ++o) {
      for (std::size_t i = 0; i < region_.options(); i += region_.devices) {
        if (region_.time(o, i + a) != region_.time(o, i + b)) return false;
        if (region_.Price(o, i + a) != region_.Price(o, i + b)) return false;
      }
    }
    return std::all_of(region_.edges.begin(), region_.edges.end(), [&](const Region::Edge& edge) {
      const auto& lag = edge.lag;
      if (lag(a, b) != lag(b, a) || lag(a, a) != lag(b, b)) return false;
      for (std::size_t c = 0; c < region_.devices; ++c) {
        if (c != a && c != b && (lag(a, c) != lag(b, c) || lag(c, a) != lag(c, b))) return false;
      }
      return true;
    });
  }

  /// Of devices that are the same and unused, only the first need be tried.
  bool HasUnusedTwinBefore(std::size_t device) const {
    if (used_[device] > 0) return false;
    for (std::size_t d = 0; d < device; ++d) {
      if (twin_[d] == twin_[device] && used_[d] == 0) return true;
    }
    return false;
  }

  /// Chooses an option for an operator and those behind it; `paid` for those before.
  void Place(std::size_t o, double paid) {
    const double above = bound_.empty() ? 0.0 : bound_.back();
    if (o == region_.operators()) {
      best_ = region_.weight * above + paid;
      return;
    }
    for (std::size_t i = 0; i < region_.options(); ++i) {
      const std::size_t d = i % region_.devices;
      if (HasUnusedTwinBefore(d)) continue;
      if (--nodes_ <= 0) return;
      place_[o] = d;
      start_[o] = 0.0;
      time_[o] = region_.time(o, i);
      for (const Region::Edge* edge : before_[o]) {
        const std::size_t a = edge->from < 0 ? first_ : place_[edge->from];
        const double ended = edge->from < 0 ? 0.0 : start_[edge->from] + time_[edge->from];
        start_[o] = std::max(start_[o], ended + edge->lag(a, d));
      }
      const double bound = std::max(above, OneAfterAnother(o));
      const double pays = paid + region_.Price(o, i);
      if (!(region_.weight * bound + pays + to_pay_[o + 1] < best_)) continue;
      bound_.push_back(bound);
      ++used_[d];
      Place(o + 1, pays);
      --used_[d];
      bound_.pop_back();
    }
  }

  /// End of the region that the operators up to `last` on its device force.
  double OneAfterAnother(std::size_t last) const {
    const std::size_t device = place_[last];
    double bound = 0.0;
    for (std::size_t i = 0; i <= last; ++i) {
      if (place_[i] != device) continue;
      double work = 0.0, follows = kInfinite;
      for (std::size_t k = 0; k <= last; ++k) {
        if (place_[k] != device || start_[k] < start_[i]) continue;
        work += time_[k];
        follows = std::min(follows, tail_(k, device));
      }
      bound = std::max(bound, start_[i] + work + follows);
    }
    return bound;
  }

  const Region& region_;
  std::int64_t nodes_;
  std::vector<std::vector<const Region::Edge*>> before_;
  simulate::Matrix<double> tail_;
  std::vector<double> first_tail_, start_, time_, bound_;
  std::vector<double> to_pay_;  // least prices of each operator and all behind it
  std::vector<std::size_t> twin_, place_;
  std::vector<int> used_;
  std::size_t first_ = 0;
  double best_ = kInfinite;
};

}  // namespace

double LeastCost(const Region& region, std::int64_t nodes) {
  return Enumeration(region, nodes).Run();
}

}  // namespace tvm_sched::search
