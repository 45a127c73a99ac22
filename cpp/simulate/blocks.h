// One GPU at the level of thread blocks (docs/model.md, "Blocks of a GPU").
#ifndef TVM_SCHED_SIMULATE_BLOCKS_H_
#define TVM_SCHED_SIMULATE_BLOCKS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "simulate/units.h"

namespace tvm_sched::simulate {

/// What a block takes of a multiprocessor, or what a multiprocessor has.
struct BlockRoom {
  std::int64_t warps = 0, registers = 0, shared_bytes = 0, blocks = 0;
};

struct BlockKernel {
  std::int64_t blocks = 1;
  BlockRoom room;               // of a block
  double block_ns = 0;          // of a block when its kernel runs alone
  double arithmetic = 0;        // of a multiprocessor's, used by a block that runs as when alone
  double bandwidth = 0;         // of the GPU's, likewise
  Nanoseconds ready, overhead;  // not before the first; from its predecessors' end to its blocks
  std::vector<std::int32_t> before;  // kernels that it waits for
};

struct BlockTimes {
  std::vector<Nanoseconds> start, end;  // of the first block, of the last block
  Nanoseconds busy;  // in which a multiprocessor has a block, summed over multiprocessors
};

/// When kernels run, which are given in launch order.
///
/// Kernels that are ready queue up in the order in which they get ready, of equal ones in launch
/// order. Blocks of the first in the queue go to the multiprocessors that have room, most room
/// first; while it has blocks left, no later one starts any. Multiprocessors get free one after
/// another, and what waits takes all room of the first at once: so small blocks that waited for
/// large ones crowd on a few multiprocessors, as measured on an H100. Blocks of a multiprocessor
/// share its arithmetic, and all the GPU's bandwidth, by warps: one that needs less than its share
/// is not slowed. A block never runs faster than when its kernel is alone.
///
/// Throws std::invalid_argument where a block fits on no multiprocessor, or kernels wait in a
/// circle.
BlockTimes SimulateBlocks(std::span<const BlockKernel> kernels, std::int64_t multiprocessors,
                          const BlockRoom& multiprocessor);

}  // namespace tvm_sched::simulate

#endif  // TVM_SCHED_SIMULATE_BLOCKS_H_
