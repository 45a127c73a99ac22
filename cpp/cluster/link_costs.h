// Allocation costs of GPUs and links: equations (4) and (5) of RAMPA.
#ifndef TVM_SCHED_CLUSTER_LINK_COSTS_H_
#define TVM_SCHED_CLUSTER_LINK_COSTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cluster/cluster.h"

namespace tvm_sched::cluster {

/// Equation (4) without the free GPUs: TFLOPS x GB.
double GpuPower(const Kind& kind);

/// Equation (4) for a GPU of each pool: TFLOPS x GB x free GPUs of its rack.
std::vector<double> GpuCosts(const Cluster& cluster, const Residual& residual);

/// Equation (5): which links lie on shortest paths between GPUs that matter.
class LinkCosts {
 public:
  explicit LinkCosts(const Cluster& cluster);

  /// The cost of each link, for the GPUs that are free.
  std::vector<double> operator()(const Cluster& cluster, const Residual& residual,
                                 const std::vector<double>& gpu_costs) const;

  /// For each pool, the cost of the link that joins one of its GPUs to the rack's switch: all
  /// shortest paths from and to this GPU lead over it.
  std::vector<double> OfAccessLinks(const Cluster& cluster, const Residual& residual,
                                    const std::vector<double>& gpu_costs) const;

  /// Costs where a pool of GPUs is one node that a link joins to its switch.
  struct OfPools {
    std::vector<double> links, access;  // of each link, and of each pool's own
  };

  /// As the authors' program: (5) over pairs of pools that have free GPUs.
  OfPools OverPools(const Cluster& cluster, const Residual& residual,
                    const std::vector<double>& gpu_costs) const;

 private:
  struct Share {
    LinkId link;
    double part;  // of the shortest paths between two switches
  };
  struct Pair {
    std::int32_t hops = 0;
    std::vector<Share> shares;
  };
  const Pair& Between(SwitchId at, SwitchId to) const {
    const auto [a, b] = std::minmax(at, to);
    return pairs_[static_cast<std::size_t>(a) * switches_ + static_cast<std::size_t>(b)];
  }

  std::size_t switches_;
  std::vector<Pair> pairs_;
};

}  // namespace tvm_sched::cluster

#endif  // TVM_SCHED_CLUSTER_LINK_COSTS_H_
