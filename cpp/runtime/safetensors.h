// Reads the header of a safetensors file: 8 bytes of length, a JSON object, then the tensors'
// bytes.
#ifndef TVM_SCHED_RUNTIME_SAFETENSORS_H_
#define TVM_SCHED_RUNTIME_SAFETENSORS_H_

#include <map>
#include <memory>
#include <string>

#include "runtime/mapped_file.h"
#include "runtime/plan.h"

namespace tvm_sched::runtime {

/// A tensor in the file: its type and where its bytes begin.
struct StoredTensor {
  TensorSpec spec;
  const std::byte* data = nullptr;
};

struct SafetensorsFile {
  std::shared_ptr<const MappedFile> file;
  std::map<std::string, StoredTensor> tensors;
};

/// Map a file and check its header: lengths, data types, shapes, and that every tensor lies in the
/// file. Throws FormatError (what is wrong with it) or std::runtime_error (it can't be read).
SafetensorsFile OpenSafetensors(const std::string& path);

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_SAFETENSORS_H_
