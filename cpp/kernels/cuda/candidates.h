// Ways to compute one kernel, of which the fastest is taken.
#ifndef TVM_SCHED_KERNELS_CUDA_CANDIDATES_H_
#define TVM_SCHED_KERNELS_CUDA_CANDIDATES_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/library_kernel.h"
#include "runtime/cuda/handles.h"

namespace tvm_sched::cuda_kernels {

using runtime::cuda::Stream;

struct PlainKernel;

/// One way to compute a kernel on one stream.
class Candidate {
 public:
  virtual ~Candidate() = default;
  /// The same for the same way in each process and on each stream.
  virtual std::string label() const = 0;
  /// Bytes of workspace that a call needs.
  virtual std::size_t workspace() const = 0;
  /// Whether it is a library's, of which the values are checked.
  virtual bool foreign() const { return true; }
  /// Launch it; false where it is refused.
  virtual bool Run(const std::vector<void*>& data, void* workspace, Stream stream) = 0;
};

/// A kernel that one of several candidates computes. The first call leaves out those of wrong
/// values (value_check.h), times the others on its data and takes the first, unless another is
/// clearly faster. While a stream is captured nothing can be checked: usually a call before has
/// done that, else the first call outside of a capture does. All calls of a process with the same
/// `key` take the same candidate, so that their values are the same. The choice is kept on disk for
/// later processes (TVM_SCHED_CACHE, TVM_SCHED_NO_CACHE).
class FastestCandidate final : public Prepared {
 public:
  /// `candidates` are in the order of preference, `plain` is what they are compared with. Its first
  /// call throws ffi::Error if none can be taken.
  FastestCandidate(std::string key, std::string name,
                   std::vector<std::unique_ptr<Candidate>> candidates,
                   std::function<PlainKernel()> plain);

  void Run(const std::vector<void*>& data, Stream stream) override;

 private:
  void Choose(const std::vector<void*>& data, Stream stream);
  /// Whether the candidate has its workspace; it is the chosen one from now on.
  bool Take(std::size_t candidate);
  /// Whether the values of the chosen one are right.
  bool IsChosenRight(Stream stream);
  double MillisecondsOf(const std::vector<void*>& data, Stream stream, double least);
  bool RunSeveral(const std::vector<void*>& data, Stream stream, int calls);
  runtime::cuda::GraphExecHandle Capture(const std::vector<void*>& data, Stream stream, int calls);

  std::string key_, name_;
  std::vector<std::unique_ptr<Candidate>> candidates_;
  std::function<PlainKernel()> plain_;
  bool ready_ = false, checked_ = false;
  Candidate* chosen_ = nullptr;
  std::shared_ptr<std::byte> workspace_;
  std::vector<std::shared_ptr<std::byte>> captured_;  // earlier ones, which graphs may use
};

}  // namespace tvm_sched::cuda_kernels

#endif  // TVM_SCHED_KERNELS_CUDA_CANDIDATES_H_
