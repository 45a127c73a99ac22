// The block-level simulator of one GPU: `tvm_sched.simulate_blocks`.
#include "simulate/blocks.h"

#include <tvm/ffi/tvm_ffi.h>

#include <stdexcept>
#include <vector>

#include "ffi/arrays.h"
#include "ffi/records.h"
#include "runtime/throw.h"

namespace tvm_sched {
namespace {

namespace ffi = tvm::ffi;
using simulate::BlockKernel;
using simulate::BlockRoom;

/// "tvm_sched.BlockTimes": when each kernel runs.
class BlockTimesObj : public ffi::Object {
 public:
  ffi::Tensor start_ns, end_ns;
  std::int64_t busy_ns = 0;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.BlockTimes", BlockTimesObj, ffi::Object);
};

/// What a block takes, or a multiprocessor has: warps, registers, bytes of shared memory,
/// and blocks.
BlockRoom RoomOf(std::span<const std::int64_t> row) { return {row[0], row[1], row[2], row[3]}; }

std::vector<BlockKernel> KernelsOf(const NamedValues& values) {
  const auto blocks = values.Elements("blocks");
  const std::size_t count = blocks.size();
  const auto room = values.Elements("room", 4 * count);
  const auto alone = values.Elements<double>("block_ns", count);
  const auto arithmetic = values.Elements<double>("arithmetic", count);
  const auto bandwidth = values.Elements<double>("bandwidth", count);
  const auto ready = values.Elements("ready_ns", count);
  const auto overhead = values.Elements("overhead_ns", count);
  std::vector<BlockKernel> kernels(count);
  for (std::size_t k = 0; k < count; ++k) {
    kernels[k] = {blocks[k],     RoomOf(room.subspan(4 * k, 4)),
                  alone[k],      arithmetic[k],
                  bandwidth[k],  {ready[k]},
                  {overhead[k]}, {}};
  }
  const auto before = values.Elements("edge_before");
  const auto after = values.Elements("edge_after", before.size());
  for (std::size_t e = 0; e < before.size(); ++e) {
    const auto n = static_cast<std::int64_t>(count);
    TVM_SCHED_CHECK(0 <= before[e] && before[e] < n && 0 <= after[e] && after[e] < n, ValueError)
        << "an edge leads from kernel " << before[e] << " to kernel " << after[e] << " of " << n;
    kernels[after[e]].before.push_back(static_cast<std::int32_t>(before[e]));
  }
  return kernels;
}

/// When each kernel runs on a GPU.
///
/// \param kernels By name, an element for each kernel: `room` (rows, see `RoomOf`) of a block,
/// `blocks`, `block_ns` of a block alone, its parts `arithmetic` of a multiprocessor's arithmetic
/// and `bandwidth` of the bandwidth, `ready_ns`, `overhead_ns`; and the kernels that wait for each
/// other: `edge_after` for `edge_before`.
/// \param room What a multiprocessor has, see `RoomOf`.
ffi::Arc<BlockTimesObj> SimulateBlocks(const NamedValues::Values& kernels,
                                       std::int64_t multiprocessors, Integers room) {
  try {
    const auto found =
        simulate::SimulateBlocks(KernelsOf(NamedValues("a simulation of blocks", kernels)),
                                 multiprocessors, RoomOf(Elements("room", room, 4)));
    const auto times = ffi::make_arc<BlockTimesObj>();
    times->start_ns = NewRowOfCounts(found.start);
    times->end_ns = NewRowOfCounts(found.end);
    times->busy_ns = found.busy.count;
    return times;
  } catch (const std::invalid_argument& error) {
    TVM_SCHED_THROW(ValueError) << error.what();
  }
}

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = ffi::reflection;
  TVM_SCHED_RESULT(BlockTimesObj, start_ns, end_ns, busy_ns);
  refl::GlobalDef().def("tvm_sched.simulate_blocks", SimulateBlocks);
}

}  // namespace
}  // namespace tvm_sched
