// Reads parts of a mapped file into memory on a thread of its own, in a given order, while others
// compute.
#ifndef TVM_SCHED_RUNTIME_READ_AHEAD_H_
#define TVM_SCHED_RUNTIME_READ_AHEAD_H_

#include <sys/types.h>

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/mapped_file.h"

namespace tvm_sched::runtime {

class ReadAhead {
 public:
  struct Part {
    const std::byte* begin = nullptr;  // in the file's mapping
    Bytes size;
  };

  /// Begin to read the parts in their order. `depth` pieces of a mebibyte are asked of the disk at
  /// once.
  ReadAhead(std::shared_ptr<const MappedFile> file, std::vector<Part> parts, int depth);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// Sleep until a part is in memory. Throws std::runtime_error where it cannot be read. In a child
  /// of the process that reads, return at once: who touches the pages reads them.
  void Await(std::size_t part);

 private:
  void Work();

  const std::shared_ptr<const MappedFile> file_;
  const std::vector<Part> parts_;
  const int depth_;
  const pid_t owner_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t read_ = 0;  // parts that are in memory
  bool stopped_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_READ_AHEAD_H_
