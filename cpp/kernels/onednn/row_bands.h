// An image's convolution in bands of rows, one for each thread.
#ifndef TVM_SCHED_KERNELS_ONEDNN_ROW_BANDS_H_
#define TVM_SCHED_KERNELS_ONEDNN_ROW_BANDS_H_

#include <string>
#include <vector>

#include "kernels/onednn/description.h"

namespace tvm_sched::onednn {

/// The convolutions of the bands, for one thread each; empty where `implementation`, oneDNN's name
/// of what it takes for all threads together, is faster.
///
/// For several threads oneDNN's kernels with AVX-512 for images of few channels keep fewer sums in
/// registers, so that there is more to share, and take up to twice as long: 3 to 32 channels, 3x3
/// by 2, 224x224 took 113 us on two threads of an Intel Xeon, and 70 in bands.
std::vector<Description> RowBands(const Description& description, const std::string& implementation,
                                  int threads);

}  // namespace tvm_sched::onednn

#endif  // TVM_SCHED_KERNELS_ONEDNN_ROW_BANDS_H_
