// A file mapped into memory for reading.
#ifndef TVM_SCHED_RUNTIME_MAPPED_FILE_H_
#define TVM_SCHED_RUNTIME_MAPPED_FILE_H_

#include <cstddef>
#include <memory>
#include <string>

#include "runtime/units.h"

namespace tvm_sched::runtime {

class MappedFile {
 public:
  /// Throws std::runtime_error, which names the file and the reason.
  static std::shared_ptr<const MappedFile> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  /// Let the system take back the pages that lie wholly in a range, if it is of a mapped file: who
  /// reads there again reads the file. Any other memory is left alone.
  static void Release(const void* begin, std::size_t size);

  const std::string& path() const { return path_; }
  const std::byte* data() const { return data_; }
  Bytes size() const { return size_; }

 private:
  MappedFile(std::string path, const std::byte* data, Bytes size);

  std::string path_;
  const std::byte* data_;
  Bytes size_;
};

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_MAPPED_FILE_H_
