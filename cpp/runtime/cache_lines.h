// A text file of the cache to which processes add lines: what was found out by trying.
#ifndef TVM_SCHED_RUNTIME_CACHE_LINES_H_
#define TVM_SCHED_RUNTIME_CACHE_LINES_H_

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace tvm_sched::runtime {

/// The folder is that of Python's caches (TVM_SCHED_CACHE); nothing is read or kept where
/// TVM_SCHED_NO_CACHE is set. A file that cannot be read or written costs finding out again,
/// nothing else.
class CacheLines {
 public:
  /// A file that is larger than `most_bytes` is begun anew.
  explicit CacheLines(const std::string& name, std::size_t most_bytes = std::size_t{16} << 20);

  /// Whole lines: one that a process was killed in is left out.
  std::vector<std::string> Read() const;

  /// Add a line, without its end.
  void Add(const std::string& line) const;

  bool used() const { return !file_.empty(); }

 private:
  std::filesystem::path file_;  // empty where nothing is kept
};

}  // namespace tvm_sched::runtime

#endif  // TVM_SCHED_RUNTIME_CACHE_LINES_H_
