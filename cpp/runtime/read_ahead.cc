#include "runtime/read_ahead.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "runtime/stages.h"

namespace tvm_sched::runtime {

namespace {

constexpr std::int64_t kPiece = 1 << 20;

/// A stretch of the file, and the part that is in memory when it has been read, if it is the last.
struct Piece {
  std::int64_t offset, size;
  std::optional<std::size_t> ends;
};

std::vector<Piece> PiecesOf(const MappedFile& file, const std::vector<ReadAhead::Part>& parts) {
  std::vector<Piece> pieces;
  for (std::size_t k = 0; k < parts.size(); ++k) {
    std::int64_t offset = parts[k].begin - file.data();
    const std::int64_t end = offset + parts[k].size.count;
    do {
      // Pieces end at multiples of their size, so that parts in a row are read in whole ones.
      const std::int64_t next = std::min(end, (offset / kPiece + 1) * kPiece);
      pieces.push_back({offset, next - offset, std::nullopt});
      offset = next;
    } while (offset < end);
    pieces.back().ends = k;
  }
  return pieces;
}

}  // namespace

ReadAhead::ReadAhead(std::shared_ptr<const MappedFile> file, std::vector<Part> parts, int depth)
    : file_(std::move(file)),
      parts_(std::move(parts)),
      depth_(depth),
      owner_(getpid()),
      thread_([this] { Work(); }) {}

ReadAhead::~ReadAhead() {
  if (owner_ != getpid()) {
    thread_.detach();  // which the parent alone has
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  thread_.join();
}

void ReadAhead::Await(std::size_t part) {
  if (owner_ != getpid()) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return read_ > part || failure_; });
  if (read_ <= part) std::rethrow_exception(failure_);
}

void ReadAhead::Work() {
  const Clock::time_point begin = Clock::now();
  std::int64_t bytes = 0;
  try {
    const std::vector<Piece> pieces = PiecesOf(*file_, parts_);
    std::size_t asked = 0;
    for (std::size_t k = 0; k < pieces.size(); ++k) {
      const std::size_t ahead = std::min(pieces.size(), k + static_cast<std::size_t>(depth_));
      for (; asked < ahead; ++asked) file_->Ask(pieces[asked].offset, pieces[asked].size);
      file_->Populate(pieces[k].offset, pieces[k].size);
      bytes += pieces[k].size;
      if (k == 0) NoteStage({"first bytes", begin, Clock::now(), bytes});
      // Who waits for the last part may ask for the stages at once.
      if (k + 1 == pieces.size()) NoteStage({"read parameters", begin, Clock::now(), bytes});
      const std::lock_guard lock(mutex_);
      if (stopped_) return;
      if (!pieces[k].ends) continue;
      read_ = *pieces[k].ends + 1;
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    changed_.notify_all();
  }
}

}  // namespace tvm_sched::runtime
