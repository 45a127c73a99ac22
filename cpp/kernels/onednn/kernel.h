// A kernel: one primitive of oneDNN with everything that a call needs.
#ifndef TVM_SCHED_KERNELS_ONEDNN_KERNEL_H_
#define TVM_SCHED_KERNELS_ONEDNN_KERNEL_H_

#include <tvm/ffi/function.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/onednn/description.h"
#include "kernels/onednn/matrix_vector.h"
#include "kernels/onednn/own_kernel.h"
#include "kernels/onednn/packed.h"
#include "kernels/onednn/value_bounds.h"
#include "kernels/onednn/windows.h"

namespace tvm_sched::onednn {

/// A primitive and which argument of the call is which of its own.
struct Prepared {
  std::function<dnnl::primitive()> make;  // compiles it
  dnnl::memory::desc scratchpad;
  struct Binding {
    int execution_argument;  // DNNL_ARG_SRC, ...
    int operand;             // position among the arguments of the call
    dnnl::memory::desc
        expected;  // by the primitive; an argument of another layout is laid out anew
  };
  std::vector<Binding> bindings;
  std::optional<Windows> windows;  // what the first argument is copied into
  std::string implementation;      // oneDNN's name of it, "ref:any" for one that is not optimised
  std::string check{};             // name of the check of its values
};

/// The implementation that the description names, or oneDNN's first, if its values are right
/// (value_check.h); else the next whose values are. Throws dnnl::error where oneDNN has no
/// primitive for the description, std::runtime_error where all compute wrong values. The caller has
/// entered `threads`, here and below.
Prepared Prepare(const Description& description, int threads);

/// oneDNN's names of its optimised implementations whose values are right, the one that it would
/// take first, up to `most`.
std::vector<std::string> ImplementationsOf(const Description& description, int threads,
                                           std::size_t most);

/// The one that the description names, or the first of them; if there is none the name of one that
/// the compiler leaves to TVM, whose values were not looked at: a reference implementation, or one
/// that is not exact.
std::string FirstImplementation(const Description& description, int threads);

/// Whether it is not optimised.
bool IsReference(const std::string& implementation);

/// Whether an implementation computes the integers of the kernel exactly, if it has any.
bool IsExact(const Description& description, const std::string& implementation);

/// The processor.
const dnnl::engine& Engine();

/// oneDNN's name of the implementation it would take here on a share of this many cores, empty
/// where it has none.
std::string ImplementationOf(const Description& description, int cores);

/// All that may be taken, but for reference implementations, oneDNN's first or our own.
std::vector<std::string> AllImplementations(const Description& description, int cores);

/// The layout in which an argument comes.
dnnl::memory::desc LayoutOf(const Operand& operand);

/// Elements of the tensor that holds an argument: of one that was laid out with the padding.
std::int64_t StoredElements(const Operand& operand);

class Kernel {
 public:
  /// What the kernels of a module share.
  struct Shared {
    /// Of a module whose values have this many numbers.
    explicit Shared(std::size_t values) : bounds(values) {}

    /// Counted up when the values of parameters change: they are laid out anew at the next call.
    std::atomic<std::uint64_t> generation{1};
    PackedParameters packed;
    ValueBounds bounds;
  };

  /// Makes the primitive, for its share of this many cores. `bounds_result`: another kernel needs a
  /// bound of the result.
  Kernel(std::string name, Description description, int cores, std::shared_ptr<Shared> shared,
         bool bounds_result = false);

  /// Inputs, then the result: compact tensors in CPU memory, of the types described. Callers take
  /// turns.
  void Call(tvm::ffi::PackedArgs args);
  /// The same, by the addresses of all operands.
  void CallAt(const std::vector<void*>& data);

  /// Lay out parameters before the first call: of each input its tensor, null for those that are no
  /// parameters.
  void Prepare(const std::vector<const DLTensor*>& inputs);

  /// Names of the checks that its primitives passed (`TrustChecks`).
  const std::vector<std::string>& checks() const { return checks_; }

  /// Free the parameters that were laid out; the next call, or Prepare, lays them out anew.
  void ReleaseParameters();

 private:
  void Build();
  /// Add a primitive that computes the result, or a band of it as `described`.
  void AddPart(const Prepared& prepared, const Description& described);
  /// Whether an argument comes as it is expected; else a call, or of a parameter
  /// `LayOutParameters`, copies it.
  bool ComesAs(const dnnl::memory::desc& expected, const Operand& given, int operand);
  /// Run the primitives.
  void Compute();
  void Execute(const std::vector<void*>& data);
  [[noreturn]] void Fail(const dnnl::error& error) const;
  /// Lay out the parameters among the arguments as the primitive wants them, where they are new.
  void LayOutParameters(const std::vector<void*>& data);
  /// The address of an argument. Throws ffi::Error (ValueError) where it is not as described.
  void* AddressOf(int argument, const DLTensor* tensor) const;
  void CheckCount(std::size_t given, std::size_t wanted) const;
  /// Compute the result, and see whether operations fused to it may have met a NaN.
  void ExecutePrimitive(const std::vector<void*>& data);
  /// Bounds of the inputs by what is known of other kernels' results.
  std::vector<double> InputBounds(const std::vector<void*>& data);
  /// The largest magnitude of a parameter; it is looked for once.
  double ParameterBound(int operand, const void* data);
  /// The bounds by the inputs' values, which are looked at until it is sure that the result is
  /// right.
  Bounds LookAtInputs(const std::vector<void*>& data, std::vector<double> inputs);
  void RaiseResult(double bound);
  /// Compute once more without the fused operations, and correct what they did to NaN and infinity.
  void CorrectResult(const std::vector<void*>& data);

  std::string name_;
  Description description_;
  int cores_, threads_;
  std::shared_ptr<Shared> shared_;

  // Instead of a primitive, where there is one:
  std::unique_ptr<OwnKernel> own_;
  std::optional<MatrixVector> row_;
  struct Part {
    dnnl::primitive primitive;
    std::unordered_map<int, dnnl::memory> arguments;
    dnnl::memory scratchpad;
    std::size_t scratchpad_size = 0;
  };
  std::vector<std::string> checks_;
  std::vector<Part> parts_;  // one primitive, or one for each thread's band of the result
  std::mutex mutex_;
  std::optional<Windows> windows_;
  std::size_t scratchpad_size_ = 0;  // of all parts
  std::size_t copied_size_ = 0;  // of what a call copies: windows, and arguments in other layouts
  struct Slot {
    int operand;
    dnnl::memory memory;
    std::int64_t offset;  // bytes from the argument's address
  };
  std::vector<Slot> slots_;  // memories whose address a call sets
  struct Copy {
    int operand;
    dnnl::memory memory;  // in the primitive's layout
    dnnl::reorder reorder;
    // Of a parameter, the copy whose address the memory has, and of which tensor that is one; of
    // others it lies in the scratchpad.
    std::shared_ptr<const Packed> packed;
    const void* source = nullptr;
  };
  std::vector<Copy> copies_;

  bool needs_finite_ = false;
  std::unique_ptr<Kernel> sums_;  // without the fused operations; made once it is needed
  bool bounds_result_;
  struct Looked {
    std::uint64_t generation = 0;
    const void* source = nullptr;
    double magnitude = kUnbounded;
  };
  std::vector<Looked> looked_;          // the operands that are parameters
  std::vector<std::int64_t> elements_;  // of the tensors that hold the arguments
};

}  // namespace tvm_sched::onednn

#endif  // TVM_SCHED_KERNELS_ONEDNN_KERNEL_H_
