// An image's convolution in bands of rows, one for each thread.
#ifndef TVM_SCHED_KERNELS_ONEDNN_ROW_BANDS_H_
#define TVM_SCHED_KERNELS_ONEDNN_ROW_BANDS_H_

#include <string>
#include <vector>

#include "kernels/onednn/description.h"

namespace tvm_sched::onednn {

/// The convolutions of the bands, for one thread each. Empty where one primitive for all threads is
/// as fast; `implementation` is oneDNN's name of the one that it would take.
///
/// One primitive with AVX-512 for several threads is slow where an image has few channels: 3 to 32
/// channels, 3x3 by 2, 224x224 took 113 us on two threads of an Intel Xeon, and 70 in bands.
std::vector<Description> RowBands(const Description& description, const std::string& implementation,
                                  int threads);

}  // namespace tvm_sched::onednn

#endif  // TVM_SCHED_KERNELS_ONEDNN_ROW_BANDS_H_
