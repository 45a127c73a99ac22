// cuDNN's graph interface: operations over tensors become execution plans, on a GPU or, from a
// file of its properties, without one.
#ifndef TVM_SCHED_KERNELS_CUDA_CUDNN_GRAPH_H_
#define TVM_SCHED_KERNELS_CUDA_CUDNN_GRAPH_H_

#include <cstdint>
#include <list>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cuda/candidates.h"
#include "kernels/cuda/nvidia_libraries.h"

namespace tvm_sched::cuda_kernels {

/// A call of the interface gave a status other than 0: the graph is not supported, mostly.
class CudnnRefusal : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A descriptor of the backend interface. Its functions throw CudnnRefusal.
class Descriptor {
 public:
  explicit Descriptor(int kind);
  Descriptor(Descriptor&&) = default;
  Descriptor& operator=(Descriptor&&) = default;

  void* get() const { return made_.get(); }
  void SetIntegers(int attribute, const std::vector<std::int64_t>& values) const;
  void SetWord(int attribute, int type, int value) const;  // an enumeration
  void SetFlag(int attribute, bool value) const;
  void SetFloat(int attribute, float value) const;
  void SetText(int attribute, const std::string& text) const;
  void SetPointers(int attribute, int type, const std::vector<void*>& values) const;
  void Set(int attribute, const Descriptor& other) const;
  void Finalize() const;

  std::int64_t Integer(int attribute) const;
  std::string Text(int attribute) const;
  std::vector<int> Words(int attribute, int type, int most) const;

 private:
  struct Destroy {
    void operator()(void* descriptor) const;
  };
  std::unique_ptr<void, Destroy> made_;
};

/// A tensor of a graph.
struct GraphTensor {
  std::vector<std::int64_t> extents, strides;  // in elements
  int type = kCudnnFloat;
};

/// A graph that is being built, tensor by tensor and operation by operation.
class OperationGraph {
 public:
  /// A tensor at `offset` elements behind the kernel's tensor of this index.
  const Descriptor& Argument(const GraphTensor& tensor, int index, std::int64_t offset = 0);
  /// A number that is known when the graph is built.
  const Descriptor& Number(float value, int rank);
  const Descriptor& WholeNumber(std::int32_t value, int rank);
  /// A value between two operations, which has no memory.
  const Descriptor& Virtual(const GraphTensor& tensor);

  void Convolve(const Descriptor& x, const Descriptor& w, const Descriptor& y,
                const std::vector<std::int64_t>& padding, const std::vector<std::int64_t>& strides,
                const std::vector<std::int64_t>& dilation);
  void Multiply(const Descriptor& a, const Descriptor& b, const Descriptor& c);
  struct Pointwise {
    int mode;
    const Descriptor* b = nullptr;
    const Descriptor* mask = nullptr;
    int compute = kCudnnFloat;
    int axis = -1;
  };
  void Apply(const Pointwise& operation, const Descriptor& x, const Descriptor& y);
  void Reduce(int reduction, const Descriptor& x, const Descriptor& y);

  /// What a plan of the graph is called with.
  struct Operand {
    int index = -1;  // of the kernel's tensor; -1 for a number
    std::int64_t bytes = 0;
    std::int64_t number = 0;  // the bits of a float or int
  };
  const std::vector<Operand>& operands() const { return operands_; }
  const std::vector<std::int64_t>& ids() const { return ids_; }
  /// For the GPU of `handle`; without one for properties that are named later.
  Descriptor Finish(void* handle) const;

 private:
  const Descriptor& Make(const GraphTensor& tensor, bool is_virtual, bool by_value);
  const Descriptor& Scalar(int type, std::int64_t bits, int rank);

  std::list<Descriptor> tensors_, operations_, settings_;
  std::vector<Operand> operands_;
  std::vector<std::int64_t> ids_;
};

/// What an engine of cuDNN may do to be taken.
struct EngineRules {
  bool tensor_cores = true;         // which round float32 to TF32
  bool compiled_at_runtime = true;  // in seconds, by NVRTC
  std::size_t most = 4;             // plans
};

/// A GPU's properties as cuDNN writes them (JSON).
std::string CudnnDeviceProperties(int device);

/// Plans as text, by cuDNN's heuristics, best first; for a GPU of these properties. Empty where
/// cuDNN supports no such graph. Needs no GPU.
std::vector<std::string> CompilePlans(const OperationGraph& graph, const std::string& properties,
                                      const EngineRules& rules);

/// Plans of the graph as candidates, as cuDNN's heuristics propose them for the current GPU. Empty
/// where cuDNN has no graph interface or no plan.
std::vector<std::unique_ptr<Candidate>> PlanCandidates(const std::shared_ptr<OperationGraph>& graph,
                                                       const EngineRules& rules, Stream stream);

/// A handle belongs to a context and works on one stream at a time, so each kernel that is made
/// ready for a stream shares the handle of that stream.
void* CudnnHandle(Stream stream);

}  // namespace tvm_sched::cuda_kernels

#endif  // TVM_SCHED_KERNELS_CUDA_CUDNN_GRAPH_H_
