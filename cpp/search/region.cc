#include "region.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace tvm_sched::search {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

class Enumeration {
 public:
  Enumeration(const Region& region, int64_t nodes)
      : region_(region), nodes_(nodes), before_(region.operators()) {
    for (const Region::Edge& edge : region.edges) before_[edge.to].push_back(&edge);
    FindTails();
    FindTwins();
    place_.assign(region.operators(), 0);
    start_.assign(region.operators(), 0.0);
    used_.assign(region.devices, 0);
  }

  double Run() {
    double longest_path = kInfinite;
    for (size_t a = 0; a < region_.devices; ++a) {
      longest_path = std::min(longest_path, first_tail_[a]);
    }
    best_ = kInfinite;
    for (size_t a = 0; a < region_.devices && nodes_ > 0; ++a) {
      if (twin_[a] < a) continue;
      first_ = a;
      ++used_[a];
      Place(0);
      --used_[a];
    }
    return nodes_ > 0 ? best_ : longest_path;
  }

 private:
  /*! \brief Longest path from the end of each operator on a device to the end of the region. */
  void FindTails() {
    const size_t count = region_.operators(), devices = region_.devices;
    tail_ = {count, devices, 0.0};
    first_tail_.assign(devices, 0.0);
    for (size_t o = count; o-- > 0;) {
      for (const Region::Edge* edge : before_[o]) {
        for (size_t a = 0; a < devices; ++a) {
          double least = kInfinite;
          for (size_t b = 0; b < devices; ++b) {
            least = std::min(least, edge->lag(a, b) + region_.time(o, b) + tail_(o, b));
          }
          double& tail = edge->from < 0 ? first_tail_[a] : tail_(edge->from, a);
          tail = std::max(tail, least);
        }
      }
    }
  }

  /*! \brief For each device the first one that it could change names with. */
  void FindTwins() {
    twin_.resize(region_.devices);
    std::iota(twin_.begin(), twin_.end(), size_t{0});
    for (size_t b = 1; b < region_.devices; ++b) {
      for (size_t a = 0; a < b && twin_[b] == b; ++a) {
        if (twin_[a] == a && AreTwins(a, b)) twin_[b] = a;
      }
    }
  }

  bool AreTwins(size_t a, size_t b) const {
    for (size_t o = 0; o < region_.operators(); ++o) {
      if (region_.time(o, a) != region_.time(o, b)) return false;
    }
    return std::all_of(region_.edges.begin(), region_.edges.end(), [&](const Region::Edge& edge) {
      const auto& lag = edge.lag;
      if (lag(a, b) != lag(b, a) || lag(a, a) != lag(b, b)) return false;
      for (size_t c = 0; c < region_.devices; ++c) {
        if (c != a && c != b && (lag(a, c) != lag(b, c) || lag(c, a) != lag(c, b))) return false;
      }
      return true;
    });
  }

  /*! \brief Of devices that are the same and unused, only the first need be tried. */
  bool HasUnusedTwinBefore(size_t device) const {
    if (used_[device] > 0) return false;
    for (size_t d = 0; d < device; ++d) {
      if (twin_[d] == twin_[device] && used_[d] == 0) return true;
    }
    return false;
  }

  void Place(size_t o) {
    if (o == region_.operators()) {
      best_ = bound_.empty() ? 0.0 : bound_.back();
      return;
    }
    const double above = bound_.empty() ? 0.0 : bound_.back();
    for (size_t d = 0; d < region_.devices; ++d) {
      if (HasUnusedTwinBefore(d)) continue;
      if (--nodes_ <= 0) return;
      place_[o] = d;
      start_[o] = 0.0;
      for (const Region::Edge* edge : before_[o]) {
        const size_t a = edge->from < 0 ? first_ : place_[edge->from];
        const double ended =
            edge->from < 0 ? 0.0 : start_[edge->from] + region_.time(edge->from, a);
        start_[o] = std::max(start_[o], ended + edge->lag(a, d));
      }
      const double bound = std::max(above, OneAfterAnother(o));
      if (!(bound < best_)) continue;
      bound_.push_back(bound);
      ++used_[d];
      Place(o + 1);
      --used_[d];
      bound_.pop_back();
    }
  }

  /*! \brief End of the region that the operators up to `last` on its device force. */
  double OneAfterAnother(size_t last) const {
    const size_t device = place_[last];
    double bound = 0.0;
    for (size_t i = 0; i <= last; ++i) {
      if (place_[i] != device) continue;
      double work = 0.0, follows = kInfinite;
      for (size_t k = 0; k <= last; ++k) {
        if (place_[k] != device || start_[k] < start_[i]) continue;
        work += region_.time(k, device);
        follows = std::min(follows, tail_(k, device));
      }
      bound = std::max(bound, start_[i] + work + follows);
    }
    return bound;
  }

  const Region& region_;
  int64_t nodes_;
  std::vector<std::vector<const Region::Edge*>> before_;
  simulate::Matrix<double> tail_;
  std::vector<double> first_tail_, start_, bound_;
  std::vector<size_t> twin_, place_;
  std::vector<int> used_;
  size_t first_ = 0;
  double best_ = kInfinite;
};

}  // namespace

double LeastTime(const Region& region, int64_t nodes) { return Enumeration(region, nodes).Run(); }

}  // namespace tvm_sched::search
