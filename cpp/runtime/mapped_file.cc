#include "runtime/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace tvm_sched::runtime {

namespace {

[[noreturn]] void Fail(const std::string& path, const std::string& reason) {
  throw std::runtime_error(path + ": cannot be read (" + reason + ")");
}

/// The mapped ranges of all files, by their first address.
struct Ranges {
  std::mutex mutex;
  std::map<std::uintptr_t, std::uintptr_t> ends;
};

Ranges& Mapped() {
  static auto* ranges = new Ranges;  // for files that are closed when the process ends
  return *ranges;
}

std::uintptr_t AddressOf(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

}  // namespace

MappedFile::MappedFile(std::string path, int descriptor, const std::byte* data, Bytes size)
    : path_(std::move(path)), descriptor_(descriptor), data_(data), size_(size) {
  if (data_ == nullptr) return;
  const std::lock_guard lock(Mapped().mutex);
  Mapped().ends[AddressOf(data_)] = AddressOf(data_ + size_.count);
}

void MappedFile::Release(const void* begin, std::size_t size) {
  const std::uintptr_t first = AddressOf(begin), last = first + size;
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::lock_guard lock(Mapped().mutex);  // the file stays mapped meanwhile
  auto range = Mapped().ends.upper_bound(first);
  if (range == Mapped().ends.begin()) return;
  --range;
  if (last > range->second) return;
  const std::uintptr_t from = (first + page - 1) / page * page, to = last / page * page;
  if (from < to) madvise(reinterpret_cast<void*>(from), to - from, MADV_DONTNEED);
}

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
  if (reason != nullptr) {
    const std::string why = reason;
    close(file);
    Fail(path, why);
  }
  return std::shared_ptr<const MappedFile>(
      new MappedFile(path, file, static_cast<const std::byte*>(data), {status.st_size}));
}

const std::byte* MappedFile::shared() const {
  std::call_once(asked_, [this] {
    if (size_.count == 0) return;
    void* data =
        mmap(nullptr, static_cast<std::size_t>(size_.count), PROT_READ, MAP_SHARED, descriptor_, 0);
    if (data != MAP_FAILED) shared_ = static_cast<const std::byte*>(data);
  });
  return shared_;
}

void MappedFile::Read(std::byte* to, std::int64_t offset, std::int64_t count) const {
  while (count > 0) {
    const ssize_t got = pread(descriptor_, to, static_cast<std::size_t>(count), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) Fail(path_, std::strerror(errno));
    if (got == 0) Fail(path_, "it was cut off while it was read");
    to += got;
    offset += got;
    count -= got;
  }
}

void MappedFile::Ask(std::int64_t offset, std::int64_t count) const {
  static_cast<void>(posix_fadvise(descriptor_, offset, count, POSIX_FADV_WILLNEED));
}

void MappedFile::Populate(std::int64_t offset, std::int64_t count) const {
  if (count <= 0) return;
  const auto page = static_cast<std::int64_t>(sysconf(_SC_PAGESIZE));
  const std::int64_t first = offset / page * page;
  const auto size = static_cast<std::size_t>(offset + count - first);
  auto* begin = const_cast<std::byte*>(data_) + first;
  if (madvise(begin, size, MADV_POPULATE_READ) == 0) return;
  if (errno != EINVAL) Fail(path_, "it was cut off, or its disk fails");
  const auto* bytes = reinterpret_cast<const volatile std::byte*>(begin);  // a system before 5.14
  for (std::size_t at = 0; at < size; at += static_cast<std::size_t>(page)) {
    static_cast<void>(bytes[at]);
  }
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    const std::lock_guard lock(Mapped().mutex);
    Mapped().ends.erase(AddressOf(data_));
    munmap(const_cast<std::byte*>(data_), static_cast<std::size_t>(size_.count));
  }
  if (shared_ != nullptr) {
    munmap(const_cast<std::byte*>(shared_), static_cast<std::size_t>(size_.count));
  }
  close(descriptor_);
}

}  // namespace tvm_sched::runtime
