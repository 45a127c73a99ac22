// Convolutions and products of 8-bit integers with exact sums, on any processor.
#ifndef TVM_SCHED_KERNELS_ONEDNN_INTEGER_CONVOLUTION_H_
#define TVM_SCHED_KERNELS_ONEDNN_INTEGER_CONVOLUTION_H_

#include <cstdint>
#include <vector>

#include "kernels/integers/functions.h"
#include "kernels/onednn/description.h"
#include "kernels/onednn/own_kernel.h"

namespace tvm_sched::onednn {

/// An implicit product of matrices: a few lines of the image at a time are widened to 16 bits, with
/// the padding around them, and the windows are read in place.
class IntegerConvolution final : public OwnKernel {
 public:
  /// docs/formats/kernels.md says what the operands are. Throws std::invalid_argument.
  IntegerConvolution(const Description& description, int threads);

  void Run(const std::vector<void*>& data) const final;

 private:
  /// A part of the work: lines `first` to `end` of the result, of all images, and tiles of columns.
  struct Part {
    std::int64_t image, first, end;
    std::int64_t first_panel, end_panel;
  };
  struct Call;

  void ReadPost();
  void Cut();
  Part PartOf(std::int64_t task) const;
  void Widen(const Call& call, const Part& part, std::int16_t* lines) const;
  void Compute(const Call& call, const Part& part) const;

  Description description_;
  const integers::Functions& functions_;
  int threads_;
  bool depthwise_, source_signed_, wide_;
  std::int64_t images_, channels_, height_, width_;
  std::int64_t outputs_, out_height_, out_width_;
  std::int64_t groups_, group_channels_, group_outputs_, panels_;  // of a group
  /// Of the widened image: its pixels of a line, from which pixel and in which steps they are
  /// taken.
  std::int64_t line_pixels_, pixel_step_, line_step_, x_step_, y_step_;
  std::int64_t pad_top_, pad_left_, window_height_, dilated_y_;
  std::vector<std::int64_t> segments_;
  std::int64_t pairs_, segment_weights_;
  std::int64_t lines_, chunks_, tasks_, panel_groups_;  // lines of the result of a chunk
  int factor_ = -1, summand_ = -1, table_ = -1;         // operands
  integers::Epilogue epilogue_;
};

}  // namespace tvm_sched::onednn

#endif  // TVM_SCHED_KERNELS_ONEDNN_INTEGER_CONVOLUTION_H_
