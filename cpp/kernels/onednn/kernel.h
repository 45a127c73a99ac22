// A kernel: one primitive of oneDNN with everything that a call needs.
#ifndef TVM_SCHED_KERNELS_ONEDNN_KERNEL_H_
#define TVM_SCHED_KERNELS_ONEDNN_KERNEL_H_

#include <tvm/ffi/function.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/onednn/attention.h"
#include "kernels/onednn/description.h"

namespace tvm_sched::onednn {

/// A primitive and which argument of the call is which of its own.
struct Prepared {
  dnnl::primitive primitive;
  dnnl::memory::desc scratchpad;
  struct Binding {
    int execution_argument;  // DNNL_ARG_SRC, ...
    int operand;             // position among the arguments of the call
    dnnl::memory::desc
        expected;  // by the primitive; an argument of another layout is laid out anew
  };
  std::vector<Binding> bindings;
  std::string implementation;  // oneDNN's name of it, "ref:any" for one that is not optimised
};

/// Make the primitive. Throws dnnl::error where oneDNN has none for the description.
Prepared Prepare(const Description& description, const dnnl::engine& engine);

/// oneDNN's name of the implementation it would take here on a share of so many cores, empty where
/// it has none.
std::string ImplementationOf(const Description& description, int cores);

/// The layout in which an argument comes.
dnnl::memory::desc LayoutOf(const Operand& operand);

class Kernel {
 public:
  /// Makes the primitive, for its share of so many cores. `generation` is counted up when the
  /// values of parameters change; their layout is made anew at the next call.
  Kernel(std::string name, Description description, int cores,
         std::shared_ptr<const std::atomic<std::uint64_t>> generation);

  /// Inputs, then the result: compact float32 tensors in CPU memory. One caller at a time.
  void Call(tvm::ffi::PackedArgs args);

 private:
  void Build();
  void Execute(const std::vector<void*>& data);
  [[noreturn]] void Fail(const dnnl::error& error) const;
  /// Lay out the arguments as the primitive wants them: parameters where they are new.
  void LayOut(const std::vector<void*>& data);
  std::vector<void*> Addresses(const tvm::ffi::PackedArgs& args) const;

  std::string name_;
  Description description_;
  int threads_;
  std::shared_ptr<const std::atomic<std::uint64_t>> generation_;

  std::unique_ptr<Attention> attention_;  // instead of a primitive
  dnnl::primitive primitive_;
  std::mutex mutex_;
  std::size_t scratchpad_size_ = 0;
  dnnl::memory scratchpad_;
  std::unordered_map<int, dnnl::memory> arguments_;
  struct Slot {
    int operand;
    dnnl::memory memory;
  };
  std::vector<Slot> slots_;  // memories whose address a call sets
  struct Copy {
    int operand;
    dnnl::memory memory;  // of our own, in the primitive's layout
    dnnl::reorder reorder;
    std::uint64_t generation = 0;  // of the parameter's value in it
    void* source = nullptr;
  };
  std::vector<Copy> copies_;
};

}  // namespace tvm_sched::onednn

#endif  // TVM_SCHED_KERNELS_ONEDNN_KERNEL_H_
