// Elements of a tensor to look at where all would take too long.
#ifndef TVM_SCHED_KERNELS_SAMPLED_POSITIONS_H_
#define TVM_SCHED_KERNELS_SAMPLED_POSITIONS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace tvm_sched {

/// Positions in a tensor of these extents: all if they are at most `count`, else `count` of them,
/// the same in each process. Half of the places in a dimension are near its ends, where kernels cut
/// their blocks, the others anywhere. `strides` are those of a window along the last dimensions:
/// the remainders of the places by them take all values in turn.
inline std::vector<std::vector<std::int64_t>> SampledPositions(
    const std::vector<std::int64_t>& extents, std::int64_t count,
    const std::vector<std::int64_t>& strides = {}) {
  constexpr std::int64_t kEdge = 8;
  const std::int64_t all =
      std::accumulate(extents.begin(), extents.end(), std::int64_t{1}, std::multiplies<>());
  const std::size_t first = extents.size() - std::min(extents.size(), strides.size());
  std::vector<std::vector<std::int64_t>> found;
  std::mt19937_64 random(9);
  for (std::int64_t k = 0; k < std::min(all, count); ++k) {
    std::vector<std::int64_t> position(extents.size());
    std::int64_t left = k;
    for (std::size_t axis = extents.size(); axis-- > 0;) {
      const std::int64_t extent = extents[axis];
      std::int64_t& place = position[axis];
      if (all <= count) {
        place = left % extent;
        left /= extent;
        continue;
      }
      const auto drawn = static_cast<std::int64_t>(random() >> 8);
      const std::int64_t edge = drawn / 4 % std::min(extent, kEdge);
      place = drawn % 4 == 0 ? edge : drawn % 4 == 1 ? extent - 1 - edge : drawn / 4 % extent;
      if (axis < first || strides.empty()) continue;
      const std::int64_t stride = strides[axis - first];
      const std::int64_t turned = place - place % stride + left % stride;
      if (turned < extent) place = turned;
      left /= stride;
    }
    found.push_back(std::move(position));
  }
  return found;
}

}  // namespace tvm_sched

#endif  // TVM_SCHED_KERNELS_SAMPLED_POSITIONS_H_
