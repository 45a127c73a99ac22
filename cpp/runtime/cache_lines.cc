#include "runtime/cache_lines.h"

#include <cstdlib>
#include <fstream>
#include <system_error>

namespace tvm_sched::runtime {

namespace {

std::filesystem::path Folder() {
  const auto value = [](const char* name) {
    const char* found = std::getenv(name);
    return std::string(found == nullptr ? "" : found);
  };
  const std::string refused = value("TVM_SCHED_NO_CACHE");
  if (!refused.empty() && refused != "0") return {};
  const std::string cache = value("TVM_SCHED_CACHE"), user = value("XDG_CACHE_HOME");
  if (!cache.empty()) return cache;
  if (!user.empty()) return std::filesystem::path(user) / "tvm_sched";
  if (value("HOME").empty()) return {};
  return std::filesystem::path(value("HOME")) / ".cache" / "tvm_sched";
}

}  // namespace

CacheLines::CacheLines(const std::string& name, std::size_t most_bytes) {
  const std::filesystem::path folder = Folder();
  if (folder.empty()) return;
  file_ = folder / name;
  std::error_code missing;
  const auto size = std::filesystem::file_size(file_, missing);
  if (!missing && size > most_bytes) std::filesystem::remove(file_, missing);
}

std::vector<std::string> CacheLines::Read() const {
  std::vector<std::string> lines;
  std::ifstream stored(file_);
  // A last line without an end was not written to its end.
  for (std::string line; std::getline(stored, line) && !stored.eof();) lines.push_back(line);
  return lines;
}

void CacheLines::Add(const std::string& line) const {
  if (!used()) return;
  std::error_code ignored;
  std::filesystem::create_directories(file_.parent_path(), ignored);
  std::ofstream(file_, std::ios::app) << line + '\n' << std::flush;
}

}  // namespace tvm_sched::runtime
