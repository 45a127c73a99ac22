// Binds the executor: the module kind "tvm_sched" and the functions that make one.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/tvm_ffi.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "ffi/runtime/errors.h"
#include "ffi/runtime/module.h"
#include "ffi/runtime/process.h"
#include "ffi/runtime/tensors.h"
#include "runtime/checksum.h"
#include "runtime/core_speed.h"
#include "runtime/cores.h"
#include "runtime/machine.h"
#include "runtime/mapped_file.h"
#include "runtime/processor.h"
#include "runtime/stages.h"
#include "runtime/throw.h"

namespace tvm_sched::runtime {

namespace ffi = tvm::ffi;

namespace {

/// The same bytes as another data type of the same size. NumPy has no bfloat16 of its own, so such
/// tensors come and go as uint16.
ffi::Tensor Reinterpret(ffi::Tensor tensor, const ffi::String& dtype) {
  TensorSpec spec = SpecOf(tensor);
  const DLDataType wanted = ffi::StringToDLDataType(dtype);
  if (wanted.bits * wanted.lanes != spec.dtype.bits * spec.dtype.lanes || !tensor.IsContiguous()) {
    TVM_SCHED_THROW(ValueError) << "a " << spec.ToString() << " cannot be taken as " << dtype
                                << ": the sizes must agree and the tensor must be compact";
  }
  spec.dtype = wanted;
  std::byte* data = DataOf(tensor);
  return ViewTensor(spec, std::make_shared<ffi::Tensor>(std::move(tensor)), data);
}

/// Checksum of a file without `count` bytes from `begin` on, see ChecksumOf.
std::int64_t FileChecksum(const ffi::String& path, std::int64_t begin, std::int64_t count) {
  return TranslateErrors([&]() -> std::int64_t {
    const auto file = MappedFile::Open(path);
    if (begin < 0 || count < 0 ||
        begin + count > std::min<std::int64_t>(file->size().count, 4096)) {
      TVM_SCHED_THROW(ValueError) << path << ": is too short for a checksum";
    }
    return ChecksumOf(*file, begin, count);
  });
}

ffi::Array<ffi::String> Strings(const std::vector<std::string>& given) {
  ffi::Array<ffi::String> strings;
  for (const std::string& each : given) strings.push_back(each);
  return strings;
}

/// How this machine differs from what an artifact's metadata (JSON) asks for, each with what to do.
ffi::Array<ffi::String> MachineDifferences(const ffi::String& metadata) {
  return TranslateErrors([&] {
    ffi::Array<ffi::String> differences;
    if (metadata.empty()) return differences;
    const JsonCursor document = JsonCursor::Parse(metadata, "metadata");
    for (const std::string& difference : Differences(document, ThisMachine(NeedsGpus(document)))) {
      differences.push_back(difference);
    }
    return differences;
  });
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef()
      .def("tvm_sched.machine_differences", MachineDifferences)
      .def("tvm_sched.cores", [](int wanted, int compiled) { return Cores(wanted, compiled); })
      .def("tvm_sched.container_limits",
           [](const ffi::String& root) {
             const ContainerLimits limits = ReadContainerLimits(root);
             return ffi::Array<std::int64_t>{limits.cores, limits.memory};
           })
      .def("tvm_sched.core_speed",
           [] {
             const CoreSpeed speed = MeasureCoreSpeed();
             return ffi::Array<double>{speed.flops, speed.bandwidth};
           })
      .def("tvm_sched.release_pages",
           [](void* begin, std::int64_t size) {
             MappedFile::Release(begin, static_cast<std::size_t>(size));
           })
      .def("tvm_sched.note_stage",
           [](const ffi::String& name, std::int64_t begin_ns, std::int64_t end_ns) {
             // Python's time.monotonic_ns() and this clock are one.
             NoteStage({name, Clock::time_point(Nanoseconds(begin_ns)),
                        Clock::time_point(Nanoseconds(end_ns))});
           })
      .def("tvm_sched.known_features", [] { return Strings(KnownFeatures()); })
      .def("tvm_sched.own_features", [] { return Strings(OwnFeatures()); })
      .def("tvm_sched.file_checksum", FileChecksum)
      .def("tvm_sched.stop_runs", StopRuns)
      .def("tvm_sched.copy",  // for an executable without a module of ours, since it computes
                              // nothing
           [](const ffi::Tensor& tensor) {
             return TranslateErrors([&] { return CopyOf(tensor, "the result"); });
           })
      .def("tvm_sched.make_module", &ScheduledModule::Make)
      .def("tvm_sched.reinterpret", Reinterpret)
      .def("ffi.Module.load_from_bytes.tvm_sched", &ScheduledModule::LoadFromBytes);
}

}  // namespace tvm_sched::runtime
