// A report of the GPUs and the rates of their copies, as JSON for `tvm-sched doctor`.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/tvm_ffi.h>

#include <string>

#include "ffi/runtime/errors.h"
#include "kernels/cuda/nvidia_libraries.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/gpus.h"

namespace tvm_sched::runtime {

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

namespace {

json::Object Describe(int number, const cuda::GpuFacts& facts) {
  json::Object item;
  const auto set = [&](const char* name, auto value) { item.Set(ffi::String(name), value); };
  set("number", static_cast<std::int64_t>(number));
  set("name", ffi::String(facts.name));
  set("address", ffi::String(facts.address));
  set("memory", facts.memory.count);
  set("free", cuda::FreeMemory(number).count);
  set("arch", ffi::String("sm_" + std::to_string(facts.capability)));
  set("multiprocessors", static_cast<std::int64_t>(facts.multiprocessors));
  set("clock_mhz", static_cast<std::int64_t>(facts.clock_khz / 1000));
  set("memory_clock_mhz", static_cast<std::int64_t>(facts.memory_clock_khz / 1000));
  set("memory_bits", static_cast<std::int64_t>(facts.memory_bits));
  set("cache", facts.cache.count);
  set("copy_engines", static_cast<std::int64_t>(facts.copy_engines));
  set("compute_mode", static_cast<std::int64_t>(facts.compute_mode));
  return item;
}

/// `{"driver": 13000, "gpus": [...], "peers": [[...]]}`; throws where there is no driver.
ffi::String CudaReport() {
  return TranslateErrors([&] {
    json::Object report;
    report.Set(ffi::String("driver"), static_cast<std::int64_t>(cuda::DriverVersion()));
    json::Array gpus, peers;
    int number = 0;
    for (const cuda::GpuFacts& facts : cuda::ListGpus()) gpus.push_back(Describe(number++, facts));
    for (const std::vector<bool>& row : cuda::PeerMatrix()) {
      json::Array cells;
      for (bool can : row) cells.push_back(can);
      peers.push_back(cells);
    }
    report.Set(ffi::String("gpus"), gpus);
    report.Set(ffi::String("peers"), peers);
    return ffi::String(json::Stringify(report));
  });
}

/// Bytes a second between the host and a GPU: from it, to it, both at once, and within the GPU.
ffi::Map<ffi::String, double> CudaCopyRates(int gpu, std::int64_t bytes) {
  return TranslateErrors([&] {
    const cuda::CopyRates rates = cuda::MeasureCopies(gpu, {bytes});
    return ffi::Map<ffi::String, double>{{"from_host", rates.from_host},
                                         {"to_host", rates.to_host},
                                         {"from_host_both", rates.from_host_both},
                                         {"to_host_both", rates.to_host_both},
                                         {"within", rates.within}};
  });
}

/// Bytes a second from one GPU to another, 0 where they are no peers: done by the receiver
/// ("pulled"), by the sender ("pushed"), through the host ("staged"). "right" is 0 where the driver
/// promises peer access and bytes arrive wrong.
ffi::Map<ffi::String, double> CudaPeerRates(int from, int to, std::int64_t bytes) {
  return TranslateErrors([&] {
    const cuda::PeerRates rates = cuda::MeasurePeerCopies(from, to, {bytes});
    return ffi::Map<ffi::String, double>{{"pulled", rates.pulled},
                                         {"pushed", rates.pushed},
                                         {"staged", rates.staged},
                                         {"right", rates.right ? 1.0 : 0.0}};
  });
}

/// `[{"name", "file", "version", "problem"}]` of cuBLASLt and cuDNN.
ffi::String NvidiaLibraries() {
  json::Array list;
  for (const cuda_kernels::InstalledLibrary& found : cuda_kernels::FindLibraries()) {
    json::Object item;
    item.Set(ffi::String("name"), ffi::String(found.name));
    item.Set(ffi::String("file"), ffi::String(found.file));
    item.Set(ffi::String("version"), static_cast<std::int64_t>(found.version));
    item.Set(ffi::String("problem"), ffi::String(found.problem));
    list.push_back(item);
  }
  return json::Stringify(list);
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef()
      .def("tvm_sched.cuda_report", CudaReport)
      .def("tvm_sched.cuda_copy_rates", CudaCopyRates)
      .def("tvm_sched.cuda_peer_rates", CudaPeerRates)
      .def("tvm_sched.nvidia_libraries", NvidiaLibraries);
}

}  // namespace tvm_sched::runtime
