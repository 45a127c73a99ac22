// A file mapped into memory for reading.
#ifndef TVM_SCHED_RUNTIME_MAPPED_FILE_H_
#define TVM_SCHED_RUNTIME_MAPPED_FILE_H_

#include <cstddef>
#include <memory>
#include <mutex>
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

  /// The same bytes in a second, read-only mapping that shares the file's pages with the system, as
  /// a device needs that reads them where they lie; null where it cannot be had.
  const std::byte* shared() const;
  /// Read from the file itself, without a mapping. Throws std::runtime_error.
  void Read(std::byte* to, std::int64_t offset, std::int64_t count) const;
  /// Ask the system to begin to read a stretch, and return; it may not.
  void Ask(std::int64_t offset, std::int64_t count) const;
  /// Bring the pages of a stretch of the mapping into memory, and into the page table. Throws
  /// std::runtime_error.
  void Populate(std::int64_t offset, std::int64_t count) const;

 private:
  MappedFile(std::string path, int descriptor, const std::byte* data, Bytes size);

  std::string path_;
  int descriptor_;
  const std::byte* data_;
  Bytes size_;
  mutable std::once_flag asked_;
  mutable const std::byte* shared_ = nullptr;
};

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_MAPPED_FILE_H_
