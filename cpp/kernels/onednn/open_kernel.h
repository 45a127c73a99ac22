// A kernel whose sizes are those of the tensors of each call.
#ifndef TVM_SCHED_KERNELS_ONEDNN_OPEN_KERNEL_H_
#define TVM_SCHED_KERNELS_ONEDNN_OPEN_KERNEL_H_

#include <tvm/ffi/function.h>

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "kernels/onednn/description.h"
#include "kernels/onednn/kernel.h"

namespace tvm_sched::onednn {

class OpenKernel {
 public:
  OpenKernel(std::string name, OpenDescription description, int cores,
             std::shared_ptr<Kernel::Shared> shared, bool bounds_result);

  /// As Kernel::Call. The first call with some sizes makes the primitive. Calls at once do not wait
  /// for each other: each has a kernel of its own.
  void Call(tvm::ffi::PackedArgs args);

  /// Make the kernel for its examples, so that `checks` holds theirs.
  void CheckExamples();
  std::set<std::string> checks() const;
  void ReleaseParameters();

 private:
  struct Idle {
    OpenDescription::Sizes sizes;
    std::unique_ptr<Kernel> kernel;
  };

  /// An idle kernel for these sizes, or a new one, which uses one thread if there is little to do.
  std::unique_ptr<Kernel> Take(const OpenDescription::Sizes& sizes);
  std::unique_ptr<Kernel> Make(Description description);
  void Give(OpenDescription::Sizes sizes, std::unique_ptr<Kernel> kernel);
  /// Compute a result from tensors of which one has no elements.
  void CallEmpty(const std::vector<DLTensor*>& tensors, const OpenDescription::Sizes& sizes);

  std::string name_;
  OpenDescription description_;
  int cores_;
  std::shared_ptr<Kernel::Shared> shared_;
  bool bounds_result_;
  mutable std::mutex mutex_;
  std::list<Idle> idle_;  // the last used first
  std::set<std::string> checks_;
};

}  // namespace tvm_sched::onednn

#endif  // TVM_SCHED_KERNELS_ONEDNN_OPEN_KERNEL_H_
