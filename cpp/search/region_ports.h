// The least time between an operator and one that it dominates, if devices are equal and each
// sends and receives through a port.
#ifndef TVM_SCHED_SEARCH_REGION_PORTS_H_
#define TVM_SCHED_SEARCH_REGION_PORTS_H_

#include <cstdint>
#include <vector>

namespace tvm_sched::search {

/// Operators of a region in topological order, without the one before it; the last is the
/// one that is dominated.
struct PortRegion {
  /// A tensor that operators of the region read.
  struct Tensor {
    /// The operator that makes it; -1 for the one before the region.
    std::int32_t maker;
    /// Nanoseconds of a copy.
    std::int64_t copy;
    /// In topological order, at least one.
    std::vector<std::int32_t> readers;
  };

  /// Nanoseconds of each operator, on any device.
  std::vector<std::int64_t> time;
  std::vector<Tensor> tensors;
  std::int32_t devices = 0;
};

/// The least time between the end of the operator before the region and the end of its last
/// one, as Lemma 5 of docs/proofs/regions.md bounds it for given devices and orders of arrival.
/// \param states Placements and orders to look at, complete or not; -1 if they do not suffice.
std::int64_t LeastTimeWithPorts(const PortRegion& region, std::int64_t states);

}  // namespace tvm_sched::search

#endif  // TVM_SCHED_SEARCH_REGION_PORTS_H_
