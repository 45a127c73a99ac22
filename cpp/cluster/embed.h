// From kinds of GPUs to GPUs and circuits: which pool serves which stage.
#ifndef TVM_SCHED_CLUSTER_EMBED_H_
#define TVM_SCHED_CLUSTER_EMBED_H_

#include <optional>
#include <span>
#include <vector>

#include "cluster/chain.h"
#include "cluster/cluster.h"

namespace tvm_sched::cluster {

/*! \brief Stages with their pools, the circuits between them, and the cut. */
struct Embedding {
  std::vector<PoolId> pools;  // of each stage
  std::vector<Route> routes;  // to each stage from the one before it
  Split split;

  size_t Hops() const;
};

/*! \brief Gives each stage a pool, and the stages circuits, in what is free. */
class Embedder {
 public:
  Embedder(const Cluster& cluster, const Residual& residual)
      : cluster_(cluster), residual_(residual), distances_(cluster.switches()) {}

  /*!
   * \brief The embedding of a row of kinds that holds the fewest fibres, and among these the one
   * that takes the fullest racks, if it is within the chain's limits.
   *
   * A dynamic program over stages and pools, O(stages * pools^2). It counts each circuit by itself:
   * where circuits of one service want the same last fibre, or a pool comes back after another,
   * the answer is checked and may be none.
   */
  std::optional<Embedding> Embed(const Chain& chain, std::span<const KindId> kinds);

 private:
  std::optional<std::vector<PoolId>> ChoosePools(std::span<const KindId> kinds);
  const std::vector<int32_t>& DistancesFrom(SwitchId at);

  const Cluster& cluster_;
  const Residual& residual_;
  std::vector<std::vector<int32_t>> distances_;  // by switch, empty until asked for
};

}  // namespace tvm_sched::cluster

#endif  // TVM_SCHED_CLUSTER_EMBED_H_
