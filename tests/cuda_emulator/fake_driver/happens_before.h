// Which operation is before which, whatever the time at which each is done: vector clocks, and for
// each byte the operations that touched it last.
#ifndef TVM_SCHED_TESTS_CUDA_EMULATOR_HAPPENS_BEFORE_H_
#define TVM_SCHED_TESTS_CUDA_EMULATOR_HAPPENS_BEFORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace fake_cuda {

/// By timeline, how much of it is before something. The host's threads are timeline 0, and each
/// stream is one.
using VectorClock = std::vector<std::uint64_t>;

void Join(VectorClock& into, const VectorClock& from);

/// Bytes that an operation reads, or writes.
struct Range {
  std::uintptr_t begin = 0, end = 0;
  bool written = false;
};

/// A copy, a kernel, a graph, or an access of the host.
struct Operation {
  std::string what;  // for messages
  int timeline = 0;
  std::uint64_t time = 0;  // its place on the timeline, or the number of a graph's node
};
using OperationRef = std::shared_ptr<const Operation>;

/// Two operations without order, one of which writes, and where they meet.
struct Conflict {
  OperationRef earlier, later;
  Range where;
  bool earlier_writes = false;
};

/// The operations that touched each byte since its last write.
class Accesses {
 public:
  using Before = std::function<bool(const Operation&)>;

  /// Note that `by` touches a range. Calls `found` for each operation noted earlier that conflicts
  /// with it and is not `before` it.
  void Touch(const Range& range, const OperationRef& by, const Before& before,
             const std::function<void(const Conflict&)>& found);
  void Forget(std::uintptr_t begin, std::uintptr_t end);
  void Clear() { cells_.clear(); }
  /// All that was touched.
  std::vector<Range> Ranges() const;

 private:
  struct Cell {
    std::uintptr_t end = 0;
    OperationRef write;
    std::vector<OperationRef> reads;
  };
  /// Let a cell begin at `address`, if one lies across it.
  void Split(std::uintptr_t address);

  std::map<std::uintptr_t, Cell> cells_;
};

}  // namespace fake_cuda

#endif  // TVM_SCHED_TESTS_CUDA_EMULATOR_HAPPENS_BEFORE_H_
