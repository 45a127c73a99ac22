#include "runtime/cuda/pinned_parameters.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "runtime/cores.h"
#include "runtime/stages.h"

namespace tvm_sched::runtime::cuda {

namespace {

constexpr const char* kPinningVariable = "TVM_SCHED_PINNING";
constexpr std::int64_t kHugePage = 2 << 20;
// Sources in the slab start at multiples of it, as buffers in arenas do, so that several in a row
// can be one copy.
constexpr auto kBetween = static_cast<std::int64_t>(kAlignment);

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

std::int64_t RoundUp(std::int64_t value, std::int64_t step) {
  return (value + step - 1) / step * step;
}

std::int64_t PageSize() {
  static const std::int64_t size = sysconf(_SC_PAGESIZE);
  return size;
}

/// Bring the pages of a mapping into memory, and into the page table.
void Populate(std::byte* begin, std::int64_t size) {
  if (madvise(begin, static_cast<std::size_t>(size), MADV_POPULATE_READ) == 0) return;
  if (errno != EINVAL) throw std::runtime_error("pages cannot be read");
  const auto* bytes = reinterpret_cast<const volatile std::byte*>(begin);  // a system before 5.14
  for (std::int64_t at = 0; at < size; at += PageSize()) static_cast<void>(bytes[at]);
}

[[noreturn]] void RefuseVariable(const std::string& text) {
  throw std::invalid_argument(
      std::string(kPinningVariable) + " is \"" + text +
      "\", expected \"map\", \"slab\" or \"allocate\", and after commas MiB of a piece (an even "
      "number up to 1024), readers and pinners (1 to 256)");
}

}  // namespace

Pinning Pinning::FromEnvironment() {
  Pinning result;
  const char* given = std::getenv(kPinningVariable);
  if (given == nullptr || *given == '\0') return result;
  const std::string text = given;
  std::istringstream parts(text);
  std::vector<std::string> words;
  for (std::string word; std::getline(parts, word, ',');) words.push_back(word);
  static const std::map<std::string, Way> ways{
      {"map", Way::kMap}, {"slab", Way::kSlab}, {"allocate", Way::kAllocate}};
  const auto way = words.empty() ? ways.end() : ways.find(words[0]);
  if (way == ways.end() || words.size() > 4) RefuseVariable(text);
  result.way = way->second;
  const auto number = [&](std::size_t word, int most) {
    const std::string& digits = words[word];
    const bool fits = !digits.empty() && digits.size() <= 4 &&
                      digits.find_first_not_of("0123456789") == std::string::npos;
    const int value = fits ? std::stoi(digits) : 0;
    if (value < 1 || value > most) RefuseVariable(text);
    return value;
  };
  if (words.size() > 1) {
    const int mebibytes = number(1, 1024);
    if (mebibytes % 2 != 0) RefuseVariable(text);
    result.piece = std::int64_t{mebibytes} << 20;
  }
  if (words.size() > 2) result.readers = number(2, 256);
  if (words.size() > 3) result.pinners = number(3, 256);
  return result;
}

PinnedParameters::PinnedParameters(std::vector<PinnedSource> sources, const Pinning& pinning)
    : sources_(std::move(sources)), pinning_(pinning), owner_(getpid()) {
  LayOut();
  if (pinning_.way == Pinning::Way::kAllocate) return;  // once there is a driver
  MapSlab();
  StartReaders();
}

PinnedParameters::~PinnedParameters() {
  JoinThreads();
  try {
    const ContextGuard guard;
    for (const Piece& piece : pieces_) {
      if (!piece.registered) continue;
      Driver().ContextSetCurrent(context_);
      Driver().HostUnregister(regions_[piece.region].base + piece.begin);
    }
  } catch (const CudaError&) {
    // A forked child, or no driver: nothing of it is pinned here.
  }
  if (mapped_ > 0) munmap(regions_[slab_].base, static_cast<std::size_t>(mapped_));
}

bool PinnedParameters::OfThisProcess() const { return owner_ == getpid(); }

void PinnedParameters::JoinThreads() {
  stopping_.store(true);
  if (!OfThisProcess()) {
    // There are no such threads here, and nobody opens the gate again.
    static_cast<void>(new std::vector<std::thread>(std::move(threads_)));
    static_cast<void>(gate_.release());
    return;
  }
  {
    const std::lock_guard lock(gate_->mutex);
  }  // who waits has not yet looked, or is asleep
  gate_->changed.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

/// Sources of mapped files stay where they are, if they are to; others lie in the slab, in their
/// order.
void PinnedParameters::LayOut() {
  std::map<const MappedFile*, int> of_file;
  std::int64_t end = 0;
  for (std::size_t s = 0; s < sources_.size(); ++s) {
    const PinnedSource& source = sources_[s];
    const bool stays = pinning_.way == Pinning::Way::kMap && source.file != nullptr &&
                       source.file->shared() != nullptr;
    if (!stays) {
      if (slab_ < 0) {
        slab_ = static_cast<int>(regions_.size());
        regions_.emplace_back();
      }
      places_.push_back({slab_, end});
      segments_.push_back({end, static_cast<int>(s)});
      end = RoundUp(end + source.size.count, kBetween);
      continue;
    }
    const auto [found, added] =
        of_file.emplace(source.file.get(), static_cast<int>(regions_.size()));
    if (added) {
      regions_.push_back({const_cast<std::byte*>(source.file->shared()),
                          RoundUp(source.file->size().count, PageSize()), source.file});
    }
    places_.push_back({found->second, source.data - source.file->data()});
  }
  if (slab_ >= 0) regions_[slab_].size = std::max(RoundUp(end, PageSize()), PageSize());
  AddPieces();
}

void PinnedParameters::AddPieces() {
  for (Region& region : regions_) {
    region.pieces.assign((region.size + pinning_.piece - 1) / pinning_.piece, -1);
  }
  for (std::size_t s = 0; s < sources_.size(); ++s) {
    Region& region = regions_[places_[s].region];
    const std::int64_t begin = places_[s].offset, count = sources_[s].size.count;
    for (std::int64_t k = begin / pinning_.piece; k * pinning_.piece < begin + count; ++k) {
      if (region.pieces[k] >= 0) continue;
      region.pieces[k] = static_cast<int>(pieces_.size());
      pieces_.push_back(
          {places_[s].region, k * pinning_.piece, std::min((k + 1) * pinning_.piece, region.size)});
    }
  }
  left_.store(pieces_.size());
}

void PinnedParameters::MapSlab() {
  if (slab_ < 0) return;
  Region& slab = regions_[slab_];
  // Room to start at a huge page; what lies before it is never touched.
  const std::int64_t size = slab.size + kHugePage;
  void* memory = mmap(nullptr, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  auto* begin = static_cast<std::byte*>(memory);
  const auto address = reinterpret_cast<std::intptr_t>(memory);
  const std::int64_t skipped = RoundUp(address, kHugePage) - address;
  if (skipped > 0) munmap(begin, static_cast<std::size_t>(skipped));
  slab.base = begin + skipped;
  mapped_ = size - skipped;
  madvise(slab.base, static_cast<std::size_t>(mapped_), MADV_HUGEPAGE);  // where there are any
}

void PinnedParameters::StartReaders() {
  reading_ = Clock::now();
  const int most = std::min({pinning_.readers, Cores(), static_cast<int>(pieces_.size())});
  WorkOnThreads(most, [this] { ReadAll(); });
}

void PinnedParameters::WorkOnThreads(int most, const std::function<void()>& work) {
  int started = 0;
  try {
    const std::lock_guard lock(gate_->mutex);
    for (; started < most; ++started) threads_.emplace_back(work);
  } catch (const std::system_error&) {
    // The system has no more threads: those that started do the work, or else this one.
  }
  if (started == 0) work();
}

void PinnedParameters::ReadAll() {
  while (!stopping_.load()) {
    const std::size_t next = next_read_.fetch_add(1);
    if (next >= pieces_.size()) return;
    Piece& piece = pieces_[next];
    try {
      Read(piece);
      Set(piece, State::kRead);
    } catch (...) {
      Fail(piece, std::current_exception());
    }
  }
}

void PinnedParameters::Read(const Piece& piece) const {
  const Region& region = regions_[piece.region];
  if (region.file) return Populate(region.base + piece.begin, piece.end - piece.begin);
  auto segment =
      std::upper_bound(segments_.begin(), segments_.end(), piece.begin,
                       [](std::int64_t offset, const Segment& one) { return offset < one.offset; });
  if (segment != segments_.begin()) --segment;
  for (; segment != segments_.end() && segment->offset < piece.end; ++segment) {
    const PinnedSource& source = sources_[segment->source];
    const std::int64_t from = std::max<std::int64_t>(piece.begin - segment->offset, 0);
    const std::int64_t to = std::min(piece.end - segment->offset, source.size.count);
    if (from >= to) continue;
    std::byte* target = region.base + segment->offset + from;
    NoteHostAccesses({{target, static_cast<unsigned long long>(to - from), 1}});
    if (source.file) {
      source.file->Read(target, source.data - source.file->data() + from, to - from);
    } else {
      std::memcpy(target, source.data + from, static_cast<std::size_t>(to - from));
    }
  }
}

bool PinnedParameters::Pin(const Devices& devices) {
  if (context_ != nullptr) return true;
  devices.Enter(0);
  if (pinning_.way == Pinning::Way::kAllocate) {
    if (slab_ >= 0) {
      allocated_ = devices.AllocateHost({regions_[slab_].size});
      regions_[slab_].base = allocated_.get();
    }
    StartReaders();
  } else {
    if (!devices.ReadRegisteredMemory()) return false;
    flags_ = devices.ReadOnlyRegistration() ? kHostRegisterReadOnly : 0;
  }
  context_ = devices.ContextOf(0);
  pinning_began_ = Clock::now();
  // The first piece of each region says whether the others can be pinned, too.
  std::vector<bool> tried(regions_.size());
  for (Piece& piece : pieces_) {
    if (allocated_ || tried[piece.region]) continue;
    tried[piece.region] = true;
    std::unique_lock lock(gate_->mutex);
    gate_->changed.wait(lock, [&] { return piece.state != State::kWaiting; });
    if (piece.state == State::kFailed) std::rethrow_exception(failure_);
    lock.unlock();
    if (!Register(piece)) {
      context_ = nullptr;
      return false;
    }
    Set(piece, State::kPinned);
  }
  return true;
}

void PinnedParameters::PinOthers() {
  if (pinning_others_.exchange(true)) return;
  const int most = std::min(pinning_.pinners, static_cast<int>(pieces_.size()));
  WorkOnThreads(most, [this] { PinAll(); });
}

void PinnedParameters::PinAll() {
  while (true) {
    const std::size_t next = next_pin_.fetch_add(1);
    if (next >= pieces_.size()) return;
    Piece& piece = pieces_[next];
    {
      std::unique_lock lock(gate_->mutex);
      gate_->changed.wait(lock, [&] { return stopping_.load() || piece.state != State::kWaiting; });
      if (stopping_.load()) return;
      if (piece.state != State::kRead) continue;
    }
    try {
      Check(Driver().ContextSetCurrent(context_), "a GPU's context cannot be entered");
      if (!allocated_ && !Register(piece)) {
        throw CudaError(
            "memory of the parameters cannot be pinned (see ulimit -l); the environment variable "
            "TVM_SCHED_PINNING=allocate lets the driver allocate it");
      }
      Set(piece, State::kPinned);
    } catch (...) {
      Fail(piece, std::current_exception());
    }
  }
}

bool PinnedParameters::Register(Piece& piece) const {
  const Region& region = regions_[piece.region];
  const unsigned flags =
      kHostRegisterPortable | kHostRegisterDeviceMap | (region.file ? flags_ : 0u);
  piece.registered =
      Driver().HostRegister(region.base + piece.begin,
                            static_cast<std::size_t>(piece.end - piece.begin), flags) == kSuccess;
  return piece.registered;
}

void PinnedParameters::Set(Piece& piece, State state) {
  {
    const std::lock_guard lock(gate_->mutex);
    piece.state = state;
    NoteProgress(state);
  }
  gate_->changed.notify_all();
}

void PinnedParameters::NoteProgress(State state) {
  const bool pinned = state == State::kPinned;
  const bool last = pinned ? left_.fetch_sub(1) == 1 : ++read_ == pieces_.size();
  if (!last) return;
  std::int64_t bytes = 0;
  for (const Piece& piece : pieces_) bytes += piece.end - piece.begin;
  NoteStage({pinned ? "pin parameters" : "read parameters", pinned ? pinning_began_ : reading_,
             Clock::now(), bytes});
}

void PinnedParameters::Fail(Piece& piece, std::exception_ptr cause) {
  {
    const std::lock_guard lock(gate_->mutex);
    piece.state = State::kFailed;
    if (!failure_) failure_ = std::move(cause);
  }
  gate_->changed.notify_all();
}

std::byte* PinnedParameters::At(int source) const {
  return regions_[places_[source].region].base + places_[source].offset;
}

const PinnedParameters::Region& PinnedParameters::RegionOf(const std::byte* address) const {
  for (const Region& region : regions_) {
    if (region.base <= address && address < region.base + region.size) return region;
  }
  throw std::logic_error("an address is of no pinned parameter");
}

bool PinnedParameters::Await(const void* begin, Bytes size, const std::atomic<bool>& stopped) {
  if (left_.load() == 0 || size.count == 0) return true;
  PinOthers();
  constexpr std::chrono::milliseconds kLook{20};
  const auto* address = static_cast<const std::byte*>(begin);
  const Region& region = RegionOf(address);
  const std::int64_t offset = address - region.base;
  for (std::int64_t k = offset / pinning_.piece; k * pinning_.piece < offset + size.count; ++k) {
    const Piece& piece = pieces_[region.pieces[k]];
    const auto done = [&] {
      return piece.state == State::kPinned || piece.state == State::kFailed;
    };
    std::unique_lock lock(gate_->mutex);
    while (!gate_->changed.wait_for(lock, kLook, done)) {
      if (stopped.load()) return false;
    }
    if (piece.state == State::kFailed) std::rethrow_exception(failure_);
  }
  return true;
}

void PinnedParameters::Await(const void* begin, Bytes size) {
  const std::atomic<bool> never{false};
  Await(begin, size, never);
}

bool PinnedParameters::InOnePiece(const void* begin, Bytes size) const {
  const auto* address = static_cast<const std::byte*>(begin);
  const Region& region = RegionOf(address);
  const std::int64_t first = address - region.base, last = first + size.count - 1;
  return last < region.size && first / pinning_.piece == last / pinning_.piece;
}

void PinnedParameters::ForEachPart(
    const void* begin, Bytes size,
    const std::function<void(std::int64_t, std::int64_t)>& part) const {
  if (size.count == 0) return;
  const auto* address = static_cast<const std::byte*>(begin);
  const Region& region = RegionOf(address);
  std::int64_t offset = address - region.base;
  const std::int64_t end = offset + size.count;
  for (std::int64_t done = 0; offset < end;) {
    const std::int64_t limit =
        allocated_ ? end : std::min(end, (offset / pinning_.piece + 1) * pinning_.piece);
    part(done, limit - offset);
    done += limit - offset;
    offset = limit;
  }
}

}  // namespace tvm_sched::runtime::cuda
