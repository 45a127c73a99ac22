#include "search/partition/peak_memory.h"

#include <algorithm>

namespace tvm_sched::partition {

PeakMemory::PeakMemory(std::size_t capacity) {
  while (leaves_ < capacity) leaves_ *= 2;
  sum_.assign(2 * leaves_, 0);
  prefix_.assign(2 * leaves_, 0);
}

void PeakMemory::Clear() {
  for (std::size_t leaf : touched_) {
    for (std::size_t node = leaf; node > 0; node /= 2) sum_[node] = prefix_[node] = 0;
  }
  touched_.clear();
}

void PeakMemory::Hold(std::size_t first, std::size_t last, double bytes) {
  Raise(first, bytes);
  Raise(last + 1, -bytes);
}

void PeakMemory::Raise(std::size_t from, double bytes) {
  if (from >= leaves_) return;
  std::size_t node = leaves_ + from;
  touched_.push_back(node);
  sum_[node] += bytes;
  prefix_[node] = std::max(sum_[node], 0.0);
  for (node /= 2; node > 0; node /= 2) {
    sum_[node] = sum_[2 * node] + sum_[2 * node + 1];
    prefix_[node] = std::max(prefix_[2 * node], sum_[2 * node] + prefix_[2 * node + 1]);
  }
}

}  // namespace tvm_sched::partition
