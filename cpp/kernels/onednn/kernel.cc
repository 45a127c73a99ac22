#include "kernels/onednn/kernel.h"

#include <tvm/ffi/container/tensor.h>

#include <utility>

#include "kernels/onednn/scratchpad.h"
#include "threads/pool.h"

namespace tvm_sched::onednn {

namespace ffi = tvm::ffi;

namespace {

const dnnl::engine& Engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::stream& Stream() {
  thread_local dnnl::stream stream(Engine());
  return stream;
}

}  // namespace

std::string ImplementationOf(const Description& description, int cores) {
  std::string found;
  if (description.primitive == "attention") return "tvm_sched";
  threads::Enter(description.cores.Of(cores), [&] {
    try {
      found = Prepare(description, Engine()).implementation;
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_unimplemented) throw;
    }
  });
  return found;
}

Kernel::Kernel(std::string name, Description description, int cores,
               std::shared_ptr<const std::atomic<std::uint64_t>> generation)
    : name_(std::move(name)),
      description_(std::move(description)),
      threads_(description_.cores.Of(cores)),
      generation_(std::move(generation)) {
  try {
    // oneDNN cuts the work for as many threads as there are when a primitive is made.
    threads::Enter(threads_, [&] { Build(); });
  } catch (const dnnl::error& error) {
    Fail(error);
  }
}

void Kernel::Fail(const dnnl::error& error) const {
  TVM_FFI_THROW(RuntimeError) << "oneDNN failed in the kernel \"" << name_
                              << "\": " << error.what();
  TVM_FFI_UNREACHABLE();
}

void Kernel::Call(ffi::PackedArgs args) {
  const std::vector<void*> data = Addresses(args);
  // Two devices, or two instances of the executor, may call one kernel at once; its memory handles
  // are its own.
  const std::lock_guard<std::mutex> lock(mutex_);
  try {
    threads::Enter(threads_, [&] { Execute(data); });
  } catch (const dnnl::error& error) {
    Fail(error);
  }
}

void Kernel::Execute(const std::vector<void*>& data) {
  if (attention_ != nullptr) return attention_->Run(data);
  LayOut(data);
  for (Slot& slot : slots_) slot.memory.set_data_handle(data[slot.operand]);
  if (scratchpad_size_ > 0) scratchpad_.set_data_handle(Scratchpad(scratchpad_size_));
  primitive_.execute(Stream(), arguments_);
  Stream().wait();
}

std::vector<void*> Kernel::Addresses(const ffi::PackedArgs& args) const {
  const std::vector<Operand>& operands = description_.operands;
  if (args.size() != static_cast<int>(operands.size())) {
    TVM_FFI_THROW(TypeError) << "the kernel \"" << name_ << "\" takes " << operands.size()
                             << " tensors, got " << args.size();
  }
  std::vector<void*> data;
  data.reserve(operands.size());
  for (int i = 0; i < args.size(); ++i) {
    const auto tensor = args[i].cast<DLTensor*>();
    std::int64_t elements = 1;
    for (int d = 0; d < tensor->ndim; ++d) elements *= tensor->shape[d];
    const bool fits = elements == operands[i].elements() && tensor->dtype.code == kDLFloat &&
                      tensor->dtype.bits == 32 && tensor->dtype.lanes == 1;
    if (!fits) {
      TVM_FFI_THROW(ValueError) << "argument " << i << " of the kernel \"" << name_
                                << "\" is no float32 tensor of " << operands[i].elements()
                                << " elements";
    }
    data.push_back(static_cast<char*>(tensor->data) + tensor->byte_offset);
  }
  return data;
}

void Kernel::Build() {
  if (description_.primitive == "attention") {
    attention_ = std::make_unique<Attention>(description_, threads_);
    return;
  }
  const Prepared prepared = Prepare(description_, Engine());
  for (const Prepared::Binding& binding : prepared.bindings) {
    const Operand& operand = description_.operands[binding.operand];
    const dnnl::memory::desc given = LayoutOf(operand);
    if (binding.expected != given) {
      const dnnl::reorder::primitive_desc reorder(Engine(), given, Engine(), binding.expected);
      copies_.push_back(
          {binding.operand, dnnl::memory(binding.expected, Engine()), dnnl::reorder(reorder)});
      arguments_.emplace(binding.execution_argument, copies_.back().memory);
    } else {
      slots_.push_back({binding.operand, dnnl::memory(binding.expected, Engine(), nullptr)});
      arguments_.emplace(binding.execution_argument, slots_.back().memory);
    }
  }
  scratchpad_size_ = prepared.scratchpad.get_size();
  if (scratchpad_size_ > 0) {
    scratchpad_ = dnnl::memory(prepared.scratchpad, Engine(), nullptr);
    arguments_.emplace(DNNL_ARG_SCRATCHPAD, scratchpad_);
  }
  primitive_ = prepared.primitive;
}

void Kernel::LayOut(const std::vector<void*>& data) {
  const std::uint64_t generation = generation_->load(std::memory_order_acquire);
  for (Copy& copy : copies_) {
    const Operand& operand = description_.operands[copy.operand];
    void* source = data[copy.operand];
    if (operand.parameter && copy.generation == generation && copy.source == source) continue;
    dnnl::memory given(LayoutOf(operand), Engine(), source);
    copy.reorder.execute(Stream(), given, copy.memory);
    Stream().wait();
    copy.generation = generation;
    copy.source = source;
  }
}

}  // namespace tvm_sched::onednn
