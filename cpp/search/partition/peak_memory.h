// Peak memory of the activations of a stage while nodes are appended to it.
#ifndef TVM_SCHED_SEARCH_PARTITION_PEAK_MEMORY_H_
#define TVM_SCHED_SEARCH_PARTITION_PEAK_MEMORY_H_

#include <cstddef>
#include <vector>

namespace tvm_sched::partition {

/// The largest of a row of numbers, while numbers are added to stretches of it.
///
/// A stage has all its inputs before it starts and keeps each until its last reader in the stage;
/// what it makes it keeps until the last reader, or to the end if that reads elsewhere. So a node
/// appended that reads an input holds it at all positions since that input's last reader.
/// The row is kept as differences in a segment tree of sums and largest prefix sums: O(log n) for
/// each change.
class PeakMemory {
 public:
  explicit PeakMemory(std::size_t capacity);

  /// Forgets everything, in the time of what was added.
  void Clear();
  /// `bytes` are held at the positions first to last.
  void Hold(std::size_t first, std::size_t last, double bytes);
  /// The largest memory at any position.
  ///
  /// Positions not reached yet count too, and do no harm: what is held there so far is held at the
  /// last position reached as well.
  double Largest() const { return prefix_[1]; }

 private:
  /// Adds `bytes` to position `from` and all later ones.
  void Raise(std::size_t from, double bytes);

  std::size_t leaves_ = 1;
  std::vector<double> sum_, prefix_;
  std::vector<std::size_t> touched_;
};

}  // namespace tvm_sched::partition

#endif  // TVM_SCHED_SEARCH_PARTITION_PEAK_MEMORY_H_
