// Ant colony optimisation over GPUs and circuits: RAMPA, Section IV-C.
#ifndef TVM_SCHED_CLUSTER_ANTS_H_
#define TVM_SCHED_CLUSTER_ANTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "cluster/embed.h"
#include "cluster/link_costs.h"

namespace tvm_sched::cluster {

/// Table VII of the paper.
struct AntSettings {
  std::size_t agents = 20, generations = 20;
  double decrease = 0.1;  // pheromones are multiplied by it after each generation
  double increase = 100;
  double pheromone_weight = 2, cost_weight = 1;
  double initial = 1000;
  std::uint64_t seed = 0;
  std::size_t least_stages = 1, most_stages = 0;  // 0: as many as there are blocks
  bool access_links = false;  // (5) also for the link that joins a GPU to its rack's switch
  bool free_walks = false;    // without the rules that the authors' program has for walks
  /// What the authors' program does and their text leaves open, or tells otherwise.
  bool sub_agents = false;     // a colony of its own seeks links for each choice of GPUs
  bool pool_links = false;     // (5) over pairs of pools; what joins a pool to its switch is a link
  bool pool_choice = false;    // pools attract by pheromone and cost, however many GPUs are free
  bool falling_costs = false;  // q_g of (4) is counted anew after each stage
  bool first_rise = false;     // no more stages after the first number that is no better
  bool fastest = false;        // the least cycle, not the least allocation cost: PipeEdge
};

/// The embedding of least allocation cost (equation (6)) that the ants find, if any.
///
/// For each number of stages, ants choose a GPU for each stage, walk from GPU to GPU, and are
/// rejected where no cut is within the limits. A number of stages is left out when the cheapest
/// GPUs alone cost as much as the best embedding.
std::optional<Embedding> SendAnts(const Cluster& cluster, const LinkCosts& link_costs,
                                  const Residual& residual, const Chain& chain,
                                  const AntSettings& settings, const Interrupt& interrupt);

}  // namespace tvm_sched::cluster

#endif  // TVM_SCHED_CLUSTER_ANTS_H_
