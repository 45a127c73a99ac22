// From kinds of GPUs to GPUs and circuits: which pool serves which stage.
#ifndef TVM_SCHED_CLUSTER_EMBED_H_
#define TVM_SCHED_CLUSTER_EMBED_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cluster/chain.h"
#include "cluster/cluster.h"

namespace tvm_sched::cluster {

/// Stages with their pools, the circuits between them, and the cut.
struct Embedding {
  std::vector<PoolId> pools;  // of each stage
  std::vector<Route> routes;  // to each stage from the one before it
  Split split;

  std::size_t Hops() const;
};

/// Gives each stage a pool, and the stages circuits, in what is free.
class Embedder {
 public:
  Embedder(const Cluster& cluster, const Residual& residual)
      : cluster_(cluster), residual_(residual), distances_(cluster.switches()) {}

  /// The embedding of a row of kinds that holds the fewest fibres, if it is within the
  /// chain's limits.
  ///
  /// Among these, one without circuits goes where there are the fewest free fibres for each free
  /// GPU, since it needs none; one with circuits goes where there are the most. So GPUs and fibres
  /// run out together, and few GPUs are left that nothing can reach. Then the fullest rack is
  /// taken.
  ///
  /// A dynamic program over stages and pools, O(stages * pools^2). It counts each circuit by
  /// itself: where circuits of one service want the same last fibre, or a pool comes back after
  /// another, the answer is checked and may be none.
  std::optional<Embedding> Embed(const Chain& chain, std::span<const KindId> kinds);

 private:
  std::optional<std::vector<PoolId>> ChoosePools(std::span<const KindId> kinds);
  const std::vector<std::int32_t>& DistancesFrom(SwitchId at);

  /// The pool for stages that are all of one kind, if one has room for them.
  std::optional<PoolId> OnePool(std::span<const KindId> kinds) const;

  void CountAtSwitches();

  /// From 0 to 1: the more GPUs are free at a pool's switch for each free fibre there.
  double Scarcity(PoolId p) const;

  /// What it costs to enter a pool, in hops: never as much as one.
  double EntryCost(PoolId p) const;

  const Cluster& cluster_;
  const Residual& residual_;
  std::vector<std::vector<std::int32_t>> distances_;  // by switch, empty until asked for
  std::vector<std::int64_t> gpus_at_, fibres_at_;  // free ones of each switch, empty until needed
};

}  // namespace tvm_sched::cluster

#endif  // TVM_SCHED_CLUSTER_EMBED_H_
