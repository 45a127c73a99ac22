// The block-level simulator of one GPU: `tvm_sched.simulate_blocks`.
#include "simulate/blocks.h"

#include <tvm/ffi/error.h>
#include <tvm/ffi/reflection/registry.h>

#include <stdexcept>
#include <vector>

#include "ffi/arrays.h"

namespace tvm_sched {
namespace {

namespace ffi = tvm::ffi;
using simulate::BlockKernel;
using simulate::BlockRoom;
using simulate::Nanoseconds;

constexpr size_t kWhole = 7, kParts = 3;

BlockRoom RoomOf(std::span<const int64_t> row) { return {row[0], row[1], row[2], row[3]}; }

/*!
 * \brief Fills in start and end of each kernel.
 *
 * `whole`: rows of warps, registers and bytes of shared memory of a block, 1, blocks,
 * nanoseconds from which it is ready, and of overhead; `parts`: rows of a block's nanoseconds, part
 * of a multiprocessor's arithmetic, and of the bandwidth; `edges`: rows of two kernels, of which
 * the second waits for the first; `gpu`: multiprocessors, then what one has, as in `whole`.
 */
void SimulateBlocks(ffi::TensorView whole, ffi::TensorView parts, ffi::TensorView edges,
                    ffi::TensorView gpu, ffi::TensorView times) {
  const auto numbers = Elements("whole", whole);
  const size_t count = numbers.size() / kWhole;
  const auto shares = Elements<double>("parts", parts, kParts * count);
  const auto pairs = Elements("edges", edges);
  const auto has = Elements("gpu", gpu, 5);
  const auto filled = Elements("times", times, 2 * count);
  std::vector<BlockKernel> kernels(count);
  for (size_t k = 0; k < count; ++k) {
    const auto row = numbers.subspan(k * kWhole, kWhole);
    const auto part = shares.subspan(k * kParts, kParts);
    kernels[k] = {row[4], RoomOf(row), part[0], part[1], part[2], {row[5]}, {row[6]}, {}};
  }
  for (size_t e = 0; e + 1 < pairs.size(); e += 2) {
    const auto n = static_cast<int64_t>(count);
    TVM_FFI_CHECK(0 <= pairs[e] && pairs[e] < n && 0 <= pairs[e + 1] && pairs[e + 1] < n,
                  ValueError)
        << "an edge names a kernel that is not there";
    kernels[pairs[e + 1]].before.push_back(static_cast<int32_t>(pairs[e]));
  }
  try {
    const auto found = simulate::SimulateBlocks(kernels, has[0], RoomOf(has.subspan(1)));
    for (size_t k = 0; k < count; ++k) {
      filled[2 * k] = found.start[k].count;
      filled[2 * k + 1] = found.end[k].count;
    }
  } catch (const std::invalid_argument& error) {
    TVM_FFI_THROW(ValueError) << error.what();
  }
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("tvm_sched.simulate_blocks", SimulateBlocks);
}

}  // namespace
}  // namespace tvm_sched
