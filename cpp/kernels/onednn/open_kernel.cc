#include "kernels/onednn/open_kernel.h"

#include <tvm/ffi/container/tensor.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "kernels/onednn/own_kernel.h"
#include "kernels/onednn/plain_values.h"
#include "runtime/throw.h"
#include "threads/no_fork.h"

namespace tvm_sched::onednn {

namespace ffi = tvm::ffi;

namespace {

constexpr std::size_t kMostIdle = 16;  // kernels; a size that comes again later makes its own anew

constexpr runtime::Share kOneCore{0, 1};

/// Multiplications, or what takes as long, below which other threads cost more than they save.
constexpr std::int64_t kFewestProducts = 1 << 17;

bool IsSmall(const Description& d) {
  if (d.primitive == "line_convolution") return false;  // which is for large ones
  std::int64_t each = 16;
  if (d.primitive == "attention") {
    each = 4 * d.operands[1].dims[2];
  } else if (TakesIntegers(d.primitive)) {
    each = d.operands[1].elements() / std::max<std::int64_t>(d.result().dims[1], 1);
  } else if (!IsOwn(d.primitive)) {
    each = PlainValues(d, std::vector<const float*>(d.operands.size() - 1)).terms();
  }
  return d.result().elements() < kFewestProducts / std::max<std::int64_t>(each, 1);
}

std::int64_t Elements(const DLTensor& tensor) {
  std::int64_t count = 1;
  for (int d = 0; d < tensor.ndim; ++d) count *= tensor.shape[d];
  return count;
}

}  // namespace

OpenKernel::OpenKernel(std::string name, OpenDescription description, int cores,
                       std::shared_ptr<Kernel::Shared> shared, bool bounds_result)
    : name_(std::move(name)),
      description_(std::move(description)),
      cores_(cores),
      shared_(std::move(shared)),
      bounds_result_(bounds_result) {}

void OpenKernel::Call(ffi::PackedArgs args) {
  if (static_cast<std::size_t>(args.size()) != description_.example().operands.size()) {
    TVM_SCHED_THROW(TypeError) << "the kernel \"" << name_ << "\" takes "
                               << description_.example().operands.size() << " tensors, got "
                               << args.size();
  }
  std::vector<DLTensor*> tensors;
  for (int k = 0; k < args.size(); ++k) tensors.push_back(args[k].cast<DLTensor*>());
  if (Elements(*tensors.back()) == 0) return;
  OpenDescription::Sizes sizes = description_.SizesOf([&](std::size_t operand, int axis) {
    if (axis < tensors[operand]->ndim) return tensors[operand]->shape[axis];
    TVM_SCHED_THROW(ValueError) << "argument " << operand << " of the kernel \"" << name_
                                << "\" has " << tensors[operand]->ndim << " dimensions";
  });
  const bool empty = std::any_of(tensors.begin(), tensors.end(),
                                 [](const DLTensor* each) { return Elements(*each) == 0; });
  if (empty) return CallEmpty(tensors, sizes);
  const threads::NoFork whole;
  std::unique_ptr<Kernel> kernel = Take(sizes);
  kernel->Call(args);
  Give(std::move(sizes), std::move(kernel));
}

void OpenKernel::CallEmpty(const std::vector<DLTensor*>& tensors,
                           const OpenDescription::Sizes& sizes) {
  Description found = description_.At(sizes);
  std::vector<void*> data;
  for (const DLTensor* tensor : tensors) {
    data.push_back(static_cast<std::byte*>(tensor->data) + tensor->byte_offset);
  }
  const Operand& result = found.result();
  if (found.primitive == "attention") {
    std::memset(data.back(), 0, result.elements() * BytesOf(result.type));
    return;
  }
  std::vector<float> zeros;
  if (found.primitive == "matmul") {  // sums of nothing: as those of one product with 0
    const std::size_t rank = found.operands[0].dims.size();
    for (const int k : {0, 1}) {
      Operand& operand = found.operands[k];
      operand.dims[k == 0 ? rank - 1 : rank - 2] = 1;
      std::int64_t stride = 1;
      for (std::size_t d = rank; d-- > 0; stride *= operand.dims[d]) operand.strides[d] = stride;
      zeros.resize(std::max(zeros.size(), static_cast<std::size_t>(operand.elements())));
      operand.parameter = false;
    }
    data[0] = data[1] = zeros.data();
  }
  Kernel(name_, std::move(found), cores_, shared_, bounds_result_).CallAt(data);
}

std::unique_ptr<Kernel> OpenKernel::Take(const OpenDescription::Sizes& sizes) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(idle_.begin(), idle_.end(),
                                    [&](const Idle& each) { return each.sizes == sizes; });
    if (found != idle_.end()) {
      std::unique_ptr<Kernel> kernel = std::move(found->kernel);
      idle_.erase(found);
      return kernel;
    }
  }
  Description description = description_.At(sizes);
  if (IsSmall(description)) description.cores = kOneCore;
  return Make(std::move(description));
}

std::unique_ptr<Kernel> OpenKernel::Make(Description description) {
  const threads::NoFork whole;
  auto made =
      std::make_unique<Kernel>(name_, std::move(description), cores_, shared_, bounds_result_);
  const std::lock_guard lock(mutex_);
  checks_.insert(made->checks().begin(), made->checks().end());
  return made;
}

void OpenKernel::Give(OpenDescription::Sizes sizes, std::unique_ptr<Kernel> kernel) {
  std::list<Idle> last;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  idle_.push_front({std::move(sizes), std::move(kernel)});
  if (idle_.size() > kMostIdle) last.splice(last.begin(), idle_, std::prev(idle_.end()));
}

void OpenKernel::CheckExamples() {
  for (const OpenDescription::Sizes& sizes : description_.examples()) {
    for (const bool alone : {false, true}) {  // sizes like it may be smaller
      try {
        Description description = description_.At(sizes);
        if (alone) description.cores = kOneCore;
        Make(std::move(description));
      } catch (const std::exception&) {  // oneDNN has no such kernel: a call says so
      }
    }
  }
}

std::set<std::string> OpenKernel::checks() const {
  const threads::NoFork whole;
  const std::lock_guard lock(mutex_);
  return checks_;
}

void OpenKernel::ReleaseParameters() {
  const threads::NoFork whole;
  const std::lock_guard lock(mutex_);
  for (const Idle& each : idle_) each.kernel->ReleaseParameters();
}

}  // namespace tvm_sched::onednn
