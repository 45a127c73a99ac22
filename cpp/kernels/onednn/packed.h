// Parameters in the layouts of primitives.
#ifndef TVM_SCHED_KERNELS_ONEDNN_PACKED_H_
#define TVM_SCHED_KERNELS_ONEDNN_PACKED_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>

namespace tvm_sched::onednn {

/// Memory in a layout, of huge pages where it is large and the system has them.
dnnl::memory Allocate(const dnnl::memory::desc& layout, const dnnl::engine& engine,
                      std::shared_ptr<void>* owner);

/// A copy of a tensor, for kernels that want it in one layout to share.
struct Packed {
  std::shared_ptr<void> owner;
  dnnl::memory memory;
  dnnl::memory::desc given;
  std::uint64_t generation;
};

/// The copies that kernels of a module hold, by the tensor's address.
class PackedParameters {
 public:
  /// One of this tensor, in this layout; null where no kernel holds it.
  std::shared_ptr<const Packed> Find(const void* source, const dnnl::memory::desc& given,
                                     const dnnl::memory::desc& layout, std::uint64_t generation);
  void Add(const void* source, const std::shared_ptr<const Packed>& packed);

 private:
  std::mutex mutex_;
  std::multimap<const void*, std::weak_ptr<const Packed>> copies_;
};

}  // namespace tvm_sched::onednn

#endif  // TVM_SCHED_KERNELS_ONEDNN_PACKED_H_
