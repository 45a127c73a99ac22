// A cluster of unequal GPUs as the searches see it: pools of equal GPUs at switches, joined by
// links whose fibres carry one circuit each. docs/model.md, Clusters.
#ifndef TVM_SCHED_CLUSTER_CLUSTER_H_
#define TVM_SCHED_CLUSTER_CLUSTER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "simulate/units.h"

namespace tvm_sched::cluster {

using simulate::Bytes;
using simulate::Nanoseconds;
using KindId = std::int32_t;
using LinkId = std::int32_t;
using PoolId = std::int32_t;
using SwitchId = std::int32_t;

/// Bytes a second.
struct Bandwidth {
  std::int64_t rate = 1;
};

/// What the transmission of this many bytes takes, rounded up.
Nanoseconds TransferTime(Bytes bytes, Bandwidth bandwidth);

/// The GPUs of one kind in one rack, which are all alike.
struct Pool {
  SwitchId at = 0;
  KindId kind = 0;
  std::int32_t rack = 0;
  Nanoseconds delay;  // from a GPU to its switch
  Bandwidth bandwidth;
};

struct Link {
  SwitchId ends[2] = {0, 0};
  Nanoseconds delay;
  Bandwidth bandwidth;
};

struct Kind {
  double flops = 0;  // a second
  Bytes memory;
};

struct Arc {
  LinkId link = 0;
  SwitchId to = 0;
};

struct Cluster {
  std::vector<Kind> kinds;
  std::vector<Pool> pools;
  std::vector<Nanoseconds> switch_delay;
  std::vector<Link> links;
  std::vector<std::vector<Arc>> arcs;  // of each switch

  std::size_t switches() const { return switch_delay.size(); }
};

/// Fills in `arcs`; call it once all else is there.
void Finish(Cluster& cluster);

/// What is free: GPUs of each pool, fibres of each link.
struct Residual {
  std::vector<std::int64_t> gpus, fibres;
};

/// A circuit between two GPUs: links between switches, none where they share one.
struct Route {
  std::vector<LinkId> links;
  Nanoseconds head;  // until the first byte arrives
  Bandwidth bandwidth;

  Nanoseconds Time(Bytes bytes) const { return head + TransferTime(bytes, bandwidth); }
};

/// Delay and bandwidth of a circuit over the given links.
Route MakeRoute(const Cluster& cluster, PoolId from, PoolId to, std::vector<LinkId> links);

/// A circuit of fewest links with a free fibre each; the same for equal input.
std::optional<Route> ShortestRoute(const Cluster& cluster, std::span<const std::int64_t> fibres,
                                   PoolId from, PoolId to);

/// No circuit of the cluster is shorter or wider: for bounds.
Route FastestRoute(const Cluster& cluster);

inline constexpr std::int32_t kUnreachable = std::numeric_limits<std::int32_t>::max();

/// Fewest links from a switch to each other one over links with free fibres.
std::vector<std::int32_t> Distances(const Cluster& cluster, std::span<const std::int64_t> fibres,
                                    SwitchId from);

}  // namespace tvm_sched::cluster

#endif  // TVM_SCHED_CLUSTER_CLUSTER_H_
