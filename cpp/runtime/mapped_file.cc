#include "runtime/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace tvm_sched::runtime {

namespace {

[[noreturn]] void Fail(const std::string& path, const std::string& reason) {
  throw std::runtime_error(path + ": cannot be read (" + reason + ")");
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::Open(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) Fail(path, std::strerror(errno));
  struct stat status{};
  const char* reason = nullptr;
  void* data = nullptr;
  if (fstat(file, &status) != 0) {
    reason = std::strerror(errno);
  } else if (!S_ISREG(status.st_mode)) {
    reason = "not a regular file";
  } else if (status.st_size > 0) {
    // Writable for this process alone: a kernel that wrote to a parameter would spoil its own
    // copy of the page, never the file.
    data = mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ | PROT_WRITE,
                MAP_PRIVATE, file, 0);
    if (data == MAP_FAILED) reason = std::strerror(errno);
  }
  close(file);
  if (reason != nullptr) Fail(path, reason);
  return std::shared_ptr<const MappedFile>(
      new MappedFile(path, static_cast<const std::byte*>(data), {status.st_size}));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    munmap(const_cast<std::byte*>(data_), static_cast<std::size_t>(size_.count));
  }
}

}  // namespace tvm_sched::runtime
