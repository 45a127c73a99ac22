// Depthwise convolutions of 8-bit integers, with exact sums.
#ifndef TVM_SCHED_KERNELS_INTEGERS_DEPTHWISE_H_
#define TVM_SCHED_KERNELS_INTEGERS_DEPTHWISE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "kernels/integers/functions.h"

namespace tvm_sched::integers {

/// One dimension of a convolution: the window's places, `apart` from each other, begin at every
/// `step`-th number of the padded image.
struct Axis {
  std::int64_t size, out_size, kernel, step, apart, padding;

  /// The first place of the window around a result that lies in the image, and the one behind the
  /// last.
  std::int64_t First(std::int64_t result) const;
  std::int64_t End(std::int64_t result) const;
  /// From the first place of a window to the one behind its last.
  std::int64_t Reach() const { return (kernel - 1) * apart + 1; }
};

/// For a tile of channels at a time, neighbours of a line are brought side by side once, as the
/// factors of one instruction: four bytes where the processor adds four products of bytes exactly,
/// otherwise two numbers of 16 bits less the zero point. All windows read them, and lines of
/// padding are left out.
class Depthwise {
 public:
  struct Weights {
    struct Release {
      void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t{64}); }
    };
    bool are_bytes = false;
    std::unique_ptr<std::byte, Release> packed;  // (tiles, lines of the window, steps, columns)
    std::vector<std::int32_t> sums;              // (tiles, lines before one, columns)
  };
  /// The work of a task: lines and tiles of channels of an image, and where they go.
  struct Part {
    const std::uint8_t* image;
    char* result;
    std::int64_t first_line, end_line, first_tile, end_tile;
    std::int32_t zero;
  };

  Depthwise(const Axis& lines, const Axis& pixels, std::int64_t channels, bool is_signed,
            const Functions& functions);

  /// Lines of the result, which are pixels if the image is one pixel wide.
  std::int64_t lines() const { return lines_.out_size; }
  /// Weights (tiles, places of the window, columns), to an even number of places.
  Weights LayOut(const std::int16_t* weights) const;
  std::size_t ScratchBytes() const;
  /// The epilogue has numbers for whole tiles.
  void Compute(const Weights& weights, const Part& part, const Epilogue& epilogue,
               std::byte* scratch) const;

 private:
  struct Block;
  struct Sums;

  /// Most pixels of the image for a line of a block.
  std::int64_t Pixels() const;
  /// Instructions of a line of the window.
  std::int64_t Steps(bool bytes) const;
  void Bring(const Block& block, std::int64_t line, std::int64_t count) const;
  void Start(const Block& block, std::int64_t low, std::int64_t high, std::int32_t* start) const;
  void PlaceSegments(const Block& block, std::int64_t slot, std::int64_t lines) const;
  void ComputeLine(const Block& block, std::int64_t line, std::int64_t low, std::int64_t high,
                   const std::int32_t* start, Sums& sums) const;
  void Finish(const Block& block, Sums& sums) const;

  Axis lines_, pixels_;
  std::int64_t channels_;
  std::int64_t block_;  // pixels of the result's lines that are computed together
  std::int64_t held_;   // lines of the image at a time: all, or those of a window
  bool signed_;
  const Functions& functions_;
};

}  // namespace tvm_sched::integers

#endif  // TVM_SCHED_KERNELS_INTEGERS_DEPTHWISE_H_
