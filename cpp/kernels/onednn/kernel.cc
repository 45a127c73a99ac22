#include "kernels/onednn/kernel.h"

#include <tvm/ffi/container/tensor.h>

#include <limits>
#include <stdexcept>
#include <utility>

#include "kernels/onednn/finite_operations.h"
#include "kernels/onednn/row_bands.h"
#include "kernels/onednn/scratchpad.h"
#include "runtime/throw.h"
#include "threads/no_fork.h"
#include "threads/pool.h"

namespace tvm_sched::onednn {

namespace ffi = tvm::ffi;

const dnnl::engine& Engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

namespace {

/// Parameters that lie in a mapped file need no memory once there is a copy in the primitive's
/// layout.
void ReleasePages(void* source, std::size_t size) {
  static const ffi::Function release = ffi::Function::GetGlobalRequired("tvm_sched.release_pages");
  release(source, static_cast<std::int64_t>(size));
}

std::uint8_t CodeOf(DataType type) {
  if (type == DataType::kFloat32) return kDLFloat;
  if (type == DataType::kBfloat16) return kDLBfloat;
  return type == DataType::kUint8 ? kDLUInt : kDLInt;
}

const char* NameOf(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return "float32";
    case DataType::kBfloat16:
      return "bfloat16";
    case DataType::kInt32:
      return "int32";
    case DataType::kInt16:
      return "int16";
    case DataType::kInt8:
      return "int8";
    default:
      return "uint8";
  }
}

void CheckExact(const Description& description, const std::string& implementation) {
  if (IsExact(description, implementation)) return;
  throw std::invalid_argument(
      "this processor has no exact products of 8-bit integers (AVX512-VNNI, AVX-VNNI or AMX), for "
      "which the artifact was compiled; compile the model again for it with --processor");
}

/// Bytes of a part of the scratchpad, all of whose parts begin on cache lines.
std::size_t Aligned(std::size_t size) { return (size + 63) / 64 * 64; }

dnnl::stream& Stream() {
  thread_local dnnl::stream stream(Engine());
  return stream;
}

/// The primitives of the bands; none where oneDNN lacks one, or would have images laid out anew.
std::vector<Prepared> PrepareBands(const std::vector<Description>& bands) {
  std::vector<Prepared> parts;
  bool fits = true;
  threads::Enter(1, [&] {
    for (const Description& band : bands) {
      try {
        parts.push_back(Prepare(band, 1));
      } catch (const dnnl::error& error) {
        if (error.status != dnnl_unimplemented) throw;
        fits = false;
        return;
      }
      for (const Prepared::Binding& binding : parts.back().bindings) {
        const Operand& operand = band.operands[binding.operand];
        fits = fits && (operand.parameter || binding.expected == LayoutOf(operand));
      }
    }
  });
  return fits ? std::move(parts) : std::vector<Prepared>{};
}

}  // namespace

bool IsReference(const std::string& implementation) {
  return implementation.find("ref") != std::string::npos;
}

// Sums of products of 8-bit integers are exact on processors with instructions for them alone: on
// others oneDNN adds pairs in 16 bits, which saturate.
bool IsExact(const Description& description, const std::string& implementation) {
  const DataType type = description.operands[0].type;
  if (type != DataType::kInt8 && type != DataType::kUint8) return true;
  return implementation.find("vnni") != std::string::npos ||
         implementation.find("amx") != std::string::npos;
}

std::string ImplementationOf(const Description& description, int cores) {
  std::string found;
  if (IsOwn(description.primitive)) return "tvm_sched";
  if (MatrixVector::Computes(description)) {
    return description.operands[1].type == DataType::kBfloat16 ? "tvm_sched:bf16" : "tvm_sched";
  }
  const int threads = description.cores.Of(cores);
  threads::Enter(threads, [&] {
    try {
      found = FirstImplementation(description, threads);
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_unimplemented) throw;
    }
  });
  return found;
}

std::vector<std::string> AllImplementations(const Description& description, int cores) {
  const std::string first = ImplementationOf(description, cores);
  const bool own = IsOwn(description.primitive) || MatrixVector::Computes(description);
  if (own || first.empty()) return {static_cast<std::size_t>(own), first};
  std::vector<std::string> found;
  const int threads = description.cores.Of(cores);
  threads::Enter(threads, [&] {
    found = ImplementationsOf(description, threads, std::numeric_limits<std::size_t>::max());
  });
  return found;
}

Kernel::Kernel(std::string name, Description description, int cores, std::shared_ptr<Shared> shared,
               bool bounds_result)
    : name_(std::move(name)),
      description_(std::move(description)),
      cores_(cores),
      threads_(description_.cores.Of(cores)),
      shared_(std::move(shared)),
      bounds_result_(bounds_result),
      looked_(description_.operands.size()) {
  for (const Operand& operand : description_.operands) {
    elements_.push_back(StoredElements(operand));
  }
  const threads::NoFork whole;  // oneDNN has locks of its own
  try {
    // oneDNN cuts the work for as many threads as there are when a primitive is made.
    threads::Enter(threads_, [&] { Build(); });
  } catch (const dnnl::error& error) {
    Fail(error);
  }
}

void Kernel::Fail(const dnnl::error& error) const {
  TVM_SCHED_THROW(RuntimeError) << "oneDNN failed in the kernel \"" << name_
                                << "\": " << error.what();
}

void Kernel::Call(ffi::PackedArgs args) {
  CheckCount(static_cast<std::size_t>(args.size()), description_.operands.size());
  std::vector<void*> data;
  data.reserve(args.size());
  for (int i = 0; i < args.size(); ++i) data.push_back(AddressOf(i, args[i].cast<DLTensor*>()));
  CallAt(data);
}

void Kernel::CallAt(const std::vector<void*>& data) {
  // Two devices, or two instances of the executor, may call one kernel at once; its memory handles
  // are its own.
  const threads::NoFork whole;
  const std::lock_guard lock(mutex_);
  try {
    threads::Enter(threads_, [&] { Execute(data); });
  } catch (const dnnl::error& error) {
    Fail(error);
  }
}

void Kernel::Prepare(const std::vector<const DLTensor*>& inputs) {
  CheckCount(inputs.size(), description_.operands.size() - 1);
  std::vector<void*> data(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i] != nullptr) data[i] = AddressOf(static_cast<int>(i), inputs[i]);
  }
  const threads::NoFork whole;
  const std::lock_guard lock(mutex_);
  try {
    threads::Enter(1, [&] { LayOutParameters(data); });
  } catch (const dnnl::error& error) {
    Fail(error);
  }
}

void Kernel::ReleaseParameters() {
  const threads::NoFork whole;
  const std::lock_guard lock(mutex_);
  if (own_ != nullptr) own_->ReleaseWeights();
  sums_.reset();
  for (Copy& copy : copies_) copy.packed.reset(), copy.source = nullptr;
}

void Kernel::Execute(const std::vector<void*>& data) {
  LayOutParameters(data);
  if (own_ != nullptr) {
    own_->Run(data);
    if (bounds_result_) RaiseResult(BoundsOf(description_, InputBounds(data)).result);
    return;
  }
  if (row_) {
    std::vector<void*> laid_out = data;
    for (const Copy& copy : copies_) laid_out[copy.operand] = copy.memory.get_data_handle();
    row_->Run(laid_out);  // which keeps NaN
    if (bounds_result_) RaiseResult(BoundsOf(description_, InputBounds(data)).result);
    return;
  }
  for (Slot& slot : slots_) {
    slot.memory.set_data_handle(static_cast<std::byte*>(data[slot.operand]) + slot.offset);
  }
  auto* scratch = static_cast<std::byte*>(Scratchpad(copied_size_ + scratchpad_size_));
  if (windows_) {
    auto* rows = reinterpret_cast<float*>(scratch);
    windows_->Copy(static_cast<const float*>(data[0]), rows, threads_);
    parts_.front().arguments.at(DNNL_ARG_SRC).set_data_handle(rows);
    scratch += Aligned(windows_->bytes());
  }
  for (Copy& copy : copies_) {
    const Operand& operand = description_.operands[copy.operand];
    if (operand.parameter) continue;
    dnnl::memory given(LayoutOf(operand), Engine(), data[copy.operand]);
    copy.memory.set_data_handle(scratch);
    copy.reorder.execute(Stream(), given, copy.memory);
    scratch += Aligned(copy.memory.get_desc().get_size());
  }
  for (Part& part : parts_) {
    if (part.scratchpad_size > 0) part.scratchpad.set_data_handle(scratch);
    scratch += part.scratchpad_size;
  }
  ExecutePrimitive(data);
}

void Kernel::Compute() {
  const auto run = [](const Part& part) {
    part.primitive.execute(Stream(), part.arguments);
    Stream().wait();
  };
  if (parts_.size() == 1) return run(parts_.front());
  threads::Loop(threads_, static_cast<int>(parts_.size()), [&](int part) { run(parts_[part]); });
}

void Kernel::ExecutePrimitive(const std::vector<void*>& data) {
  // A single thread sees in its flags whether there was or is a NaN. The flags of TBB's workers
  // cannot be read from here, but a sum of products of finite numbers is no NaN unless it is too
  // large. A sigmoid behind a transposed convolution raises no flag on every processor.
  const bool alone = threads_ == 1 && description_.primitive != "deconvolution";
  if (needs_finite_ && alone) InvalidFlag::Clear();
  Compute();
  const bool raised = needs_finite_ && alone && InvalidFlag::Raised();
  const bool looks = needs_finite_ && !alone;
  if (!raised && !looks && !bounds_result_) return;
  std::vector<double> inputs = InputBounds(data);
  Bounds bounds = BoundsOf(description_, inputs);
  if (looks && !bounds.sure) bounds = LookAtInputs(data, std::move(inputs));
  if (raised || (looks && !bounds.sure)) {
    CorrectResult(data);
    bounds.result = kUnbounded;
  }
  if (bounds_result_) RaiseResult(bounds.result);
}

std::vector<double> Kernel::InputBounds(const std::vector<void*>& data) {
  std::vector<double> bounds;
  for (std::size_t k = 0; k + 1 < data.size(); ++k) {
    const Operand& operand = description_.operands[k];
    bounds.push_back(operand.parameter ? ParameterBound(static_cast<int>(k), data[k])
                                       : shared_->bounds.Of(operand.value));
  }
  return bounds;
}

double Kernel::ParameterBound(int operand, const void* data) {
  const std::uint64_t generation = shared_->generation.load(std::memory_order_acquire);
  Looked& last = looked_[operand];
  if (last.generation == generation && last.source == data) return last.magnitude;
  Operand looked_at = description_.operands[operand];
  const void* values = data;
  if (!looked_at.layout.empty()) {
    looked_at.dims = {elements_[static_cast<std::size_t>(operand)]};
    looked_at.within = 0;
  }
  for (const Copy& copy : copies_) {
    if (copy.operand != operand || !copy.packed) continue;
    // The numbers and zeros; the parameter itself need not be in memory any more.
    looked_at.dims = {static_cast<std::int64_t>(copy.memory.get_desc().get_size()) /
                      BytesOf(looked_at.type)};
    looked_at.within = 0;
    values = copy.memory.get_data_handle();
  }
  last = {generation, data, Magnitude(looked_at, values, threads_)};
  return last.magnitude;
}

Bounds Kernel::LookAtInputs(const std::vector<void*>& data, std::vector<double> inputs) {
  Bounds bounds;
  // First the inputs of which nothing is known.
  for (const bool known : {false, true}) {
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      const Operand& operand = description_.operands[k];
      const bool has_bound = shared_->bounds.Of(operand.value) < kUnbounded;
      if (operand.parameter || has_bound != known) continue;
      inputs[k] = Magnitude(operand, data[k], threads_);
    }
    bounds = BoundsOf(description_, inputs);
    if (bounds.sure) break;
  }
  return bounds;
}

void Kernel::RaiseResult(double bound) {
  shared_->bounds.Raise(description_.result().value, bound);
}

void Kernel::CorrectResult(const std::vector<void*>& data) {
  if (sums_ == nullptr) {
    Description plain = description_;
    plain.post.clear();
    plain.family.clear();
    sums_ = std::make_unique<Kernel>(name_, std::move(plain), cores_, shared_);
  }
  std::vector<float> sums(description_.result().elements());
  std::vector<void*> addresses = data;
  addresses.back() = sums.data();
  sums_->Execute(addresses);
  CorrectNan(description_, sums.data(), data);
}

void Kernel::CheckCount(std::size_t given, std::size_t wanted) const {
  if (given == wanted) return;
  TVM_SCHED_THROW(TypeError) << "the kernel \"" << name_ << "\" takes " << wanted
                             << " tensors, got " << given;
}

void* Kernel::AddressOf(int argument, const DLTensor* tensor) const {
  const std::int64_t wanted = elements_[static_cast<std::size_t>(argument)];
  std::int64_t elements = 1;
  for (int d = 0; d < tensor->ndim; ++d) elements *= tensor->shape[d];
  const DataType type = description_.operands[argument].type;
  const bool fits = elements == wanted && tensor->dtype.code == CodeOf(type) &&
                    tensor->dtype.bits == 8 * BytesOf(type) && tensor->dtype.lanes == 1;
  if (!fits) {
    TVM_SCHED_THROW(ValueError) << "argument " << argument << " of the kernel \"" << name_
                                << "\" is no " << NameOf(type) << " tensor of " << wanted
                                << " elements";
  }
  return static_cast<char*>(tensor->data) + tensor->byte_offset +
         description_.operands[argument].offset * BytesOf(type);
}

void Kernel::Build() {
  if (IsOwn(description_.primitive)) {
    for (const Operand& operand : description_.operands) {
      if (operand.type == DataType::kFloat32 || TakesIntegers(description_.primitive)) continue;
      throw std::invalid_argument("the kernel \"" + name_ + "\" takes float32 tensors alone");
    }
    own_ = MakeOwn(description_, threads_);
    return;
  }
  needs_finite_ = NeedsFinite(description_);
  if (MatrixVector::Computes(description_)) {
    row_.emplace(description_, threads_);
    ComesAs(row_->weights(), description_.operands[1], 1);
    return;
  }
  const Prepared prepared = onednn::Prepare(description_, threads_);
  CheckExact(description_, prepared.implementation);
  checks_.push_back(prepared.check);
  windows_ = prepared.windows;
  if (windows_) copied_size_ = Aligned(windows_->bytes());
  const std::vector<Description> bands = RowBands(description_, prepared.implementation, threads_);
  const std::vector<Prepared> parts = PrepareBands(bands);
  if (parts.empty()) return AddPart(prepared, description_);
  threads::Enter(1, [&] {
    for (std::size_t k = 0; k < parts.size(); ++k) {
      AddPart(parts[k], bands[k]);
      checks_.push_back(parts[k].check);
    }
  });
}

void Kernel::AddPart(const Prepared& prepared, const Description& described) {
  Part part;
  if (described.source_zero != 0) {
    const dnnl::memory::desc one({1}, dnnl::memory::data_type::s32, dnnl::memory::format_tag::a);
    part.arguments.emplace(DNNL_ARG_ATTR_ZERO_POINTS | DNNL_ARG_SRC,
                           dnnl::memory(one, Engine(), &description_.source_zero));
  }
  for (const Prepared::Binding& binding : prepared.bindings) {
    if (windows_ && binding.operand == 0) {
      part.arguments.emplace(binding.execution_argument,
                             dnnl::memory(binding.expected, Engine(), nullptr));
      continue;
    }
    const Operand& given = described.operands[binding.operand];
    if (ComesAs(binding.expected, given, binding.operand)) {
      const std::int64_t offset = given.offset - description_.operands[binding.operand].offset;
      slots_.push_back({binding.operand, dnnl::memory(binding.expected, Engine(), nullptr),
                        offset * BytesOf(given.type)});
      part.arguments.emplace(binding.execution_argument, slots_.back().memory);
    } else {
      part.arguments.emplace(binding.execution_argument, copies_.back().memory);
    }
  }
  if (prepared.scratchpad.get_size() > 0) {
    part.scratchpad_size = Aligned(prepared.scratchpad.get_size());
    part.scratchpad = dnnl::memory(prepared.scratchpad, Engine(), nullptr);
    part.arguments.emplace(DNNL_ARG_SCRATCHPAD, part.scratchpad);
    scratchpad_size_ += part.scratchpad_size;
  }
  part.primitive = prepared.make();
  parts_.push_back(std::move(part));
}

bool Kernel::ComesAs(const dnnl::memory::desc& expected, const Operand& given, int operand) {
  const dnnl::memory::desc layout = LayoutOf(given);
  if (expected == layout) return true;
  const dnnl::reorder::primitive_desc reorder(Engine(), layout, Engine(), expected);
  copies_.push_back(
      {operand, dnnl::memory(expected, Engine(), nullptr), dnnl::reorder(reorder), {}});
  if (!description_.operands[operand].parameter) copied_size_ += Aligned(expected.get_size());
  return false;
}

void Kernel::LayOutParameters(const std::vector<void*>& data) {
  const std::uint64_t generation = shared_->generation.load(std::memory_order_acquire);
  if (own_ != nullptr) {
    if (own_->LayOut(data, generation, &shared_->packed))
      ReleasePages(data[1], LayoutOf(description_.operands[1]).get_size());
    return;
  }
  for (Copy& copy : copies_) {
    const Operand& operand = description_.operands[copy.operand];
    if (!operand.parameter) continue;
    void* source = data[copy.operand];
    if (source == nullptr) continue;
    if (copy.packed && copy.packed->generation == generation && copy.source == source) continue;
    copy.packed.reset();  // first, for the copy of the former value is as large
    const dnnl::memory::desc given = LayoutOf(operand);
    const dnnl::memory::desc layout = copy.memory.get_desc();
    copy.packed = shared_->packed.Find(source, given, layout, generation);
    if (!copy.packed) {
      auto packed = std::make_shared<Packed>();
      packed->memory = Allocate(layout, Engine(), &packed->owner);
      packed->given = given;
      packed->generation = generation;
      dnnl::memory from(given, Engine(), source);
      copy.reorder.execute(Stream(), from, packed->memory);
      Stream().wait();
      ReleasePages(source, given.get_size());
      copy.packed = packed;
      shared_->packed.Add(source, copy.packed);
    }
    copy.memory.set_data_handle(copy.packed->memory.get_data_handle());
    copy.source = source;
  }
}

}  // namespace tvm_sched::onednn
