// A service as a chain of blocks that stages are cut from, and the best cuts for given GPUs.
#ifndef TVM_SCHED_CLUSTER_CHAIN_H_
#define TVM_SCHED_CLUSTER_CHAIN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "cluster/cluster.h"

namespace tvm_sched::cluster {

/// A service's blocks in order; stages are runs of them.
struct Chain {
  std::vector<std::vector<Nanoseconds>> time_before;  // of each kind: sum over blocks before each
  std::vector<Bytes> memory_before;
  std::vector<Bytes> input;  // of each block, from the one before it; 0 for the first
  Nanoseconds cycle_limit, latency_limit;

  std::size_t blocks() const { return input.size(); }
  Nanoseconds Time(KindId kind, std::size_t first, std::size_t end) const;
  Bytes Memory(std::size_t first, std::size_t end) const;
};

/// Where stages end, and what that gives by equations (2) and (3) of RAMPA.
struct Split {
  std::vector<std::size_t> ends;
  Nanoseconds cycle, latency;
};

/// The cut into one stage a GPU that has the least cycle among those within the limits, then
/// the least latency.
///
/// \param kinds Kind of each stage's GPU.
/// \param routes Route to each stage from the one before it; one less than stages.
///
/// A label for each prefix and number of stages is the largest time so far and the sum of the
/// transfers; only labels that are best in one of both are kept. So the answer is exact, in
/// O(stages * blocks^2) where all transfers take the same time.
std::optional<Split> BestSplit(const Cluster& cluster, const Chain& chain,
                               std::span<const KindId> kinds, std::span<const Route> routes);

/// Numbers of GPUs of each kind that suffice, with the least cycle and its latency.
struct Mix {
  std::vector<std::int32_t> gpus;
  Nanoseconds cycle, latency;
};

/// Looked at from time to time in long searches; throws to end them.
using Interrupt = std::function<void()>;

/// Thrown by `Mixes` where the search would take minutes.
struct TooManyMixes : std::length_error {
  TooManyMixes() : std::length_error("too many mixes of GPUs would have to be compared") {}
};

/// All mixes of GPUs that can serve a chain and of which no GPU can be left out, over the
/// fastest route that the cluster has.
///
/// \param stages Only mixes of this many GPUs, needless ones too; 0 for the smallest of any number.
/// \param most_stages No mix has more.
/// \param least No mix of more GPUs than the cluster has in all is made.
///
/// A mix that is in no answer and contains none cannot serve the chain on any route.
std::vector<Mix> Mixes(const Cluster& cluster, const Chain& chain,
                       std::span<const std::int64_t> gpus, std::size_t stages,
                       std::size_t most_stages, const Interrupt& interrupt);

/// Orders of a mix's GPUs, each kind in one run, that can serve a chain.
std::vector<std::vector<KindId>> RunOrders(const Cluster& cluster, const Chain& chain,
                                           std::span<const std::int32_t> mix);

}  // namespace tvm_sched::cluster

#endif  // TVM_SCHED_CLUSTER_CHAIN_H_
