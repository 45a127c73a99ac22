// Parameters in host memory that GPUs read. Threads read and pin them piece by piece, in the order
// in which a run needs them, so that its first copies need not wait for the last piece.
#ifndef TVM_SCHED_RUNTIME_CUDA_PINNED_PARAMETERS_H_
#define TVM_SCHED_RUNTIME_CUDA_PINNED_PARAMETERS_H_

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/cuda/devices.h"
#include "runtime/mapped_file.h"
#include "runtime/units.h"

namespace tvm_sched::runtime::cuda {

/// How parameters get into memory that GPUs read.
struct Pinning {
  enum class Way {
    kMap,      // pages of the parameter file are pinned where they are, nothing is copied
    kSlab,     // read into huge pages, which are pinned
    kAllocate  // read into memory that the driver allocates
  };
  Way way = Way::kMap;
  std::int64_t piece = 32 << 20;  // bytes pinned at once, a multiple of a huge page
  int readers = 16, pinners = 2;  // most threads

  /// What the environment variable TVM_SCHED_PINNING says: a way ("map", "slab", "allocate") and,
  /// after commas, MiB of a piece, readers and pinners. Throws std::invalid_argument.
  static Pinning FromEnvironment();
};

/// Where a parameter's value is.
struct PinnedSource {
  const std::byte* data;
  Bytes size;
  std::shared_ptr<const void> owner;       // of `data`
  std::shared_ptr<const MappedFile> file;  // in whose mapping `data` lies, or null
};

class PinnedParameters {
 public:
  /// Begin to read `sources`, which are in the order in which they are needed.
  PinnedParameters(std::vector<PinnedSource> sources, const Pinning& pinning);
  ~PinnedParameters();
  PinnedParameters(const PinnedParameters&) = delete;
  PinnedParameters& operator=(const PinnedParameters&) = delete;

  /// False in a process that was forked from the one that reads.
  bool OfThisProcess() const;
  /// Pin the first piece, for all GPUs. False where memory cannot be pinned in this way here.
  bool Pin(const Devices& devices);
  /// Begin to pin all others. The driver does little else meanwhile: what has to be made first,
  /// such as streams, is made before. The first Await begins, too.
  void PinOthers();

  // After Pin:
  /// Where a source lies.
  std::byte* At(int source) const;
  /// Wait until a range is read and pinned; false where `stopped` was set before. Throws what went
  /// wrong.
  bool Await(const void* begin, Bytes size, const std::atomic<bool>& stopped);
  void Await(const void* begin, Bytes size);
  /// Whether a range lies in one pinned piece, so that one copy may read it.
  bool InOnePiece(const void* begin, Bytes size) const;
  /// Call `part` for each part of a range that lies in one pinned piece: a copy may not cross from
  /// one to the next.
  void ForEachPart(const void* begin, Bytes size,
                   const std::function<void(std::int64_t offset, std::int64_t count)>& part) const;

 private:
  /// A part of a source that the slab holds.
  struct Segment {
    std::int64_t offset;  // in the slab
    int source;
  };
  /// Memory that is pinned in pieces of equal size.
  struct Region {
    std::byte* base = nullptr;
    std::int64_t size = 0;
    std::shared_ptr<const MappedFile> file;  // null: the slab
    std::vector<int> pieces{};               // by position, or -1 where nobody reads it
  };
  struct Place {
    int region;
    std::int64_t offset;
  };
  enum class State { kWaiting, kRead, kPinned, kFailed };
  struct Piece {
    int region;
    std::int64_t begin, end;
    State state = State::kWaiting;
    bool registered = false;
  };

  void LayOut();
  void AddPieces();
  void MapSlab();
  void StartReaders();
  void WorkOnThreads(int most, const std::function<void()>& work);
  void ReadAll();
  void PinAll();
  void Read(const Piece& piece) const;
  bool Register(Piece& piece) const;
  void Set(Piece& piece, State state);
  /// Note how long all pieces took, once the last one has got so far.
  void NoteProgress(State state);
  void Fail(Piece& piece, std::exception_ptr cause);
  const Region& RegionOf(const std::byte* address) const;
  void JoinThreads();

  const std::vector<PinnedSource> sources_;
  const Pinning pinning_;
  const pid_t owner_;
  std::vector<Region> regions_;
  std::vector<Place> places_;      // of each source
  std::vector<Segment> segments_;  // of the slab, by offset
  int slab_ = -1;                  // its region
  std::int64_t mapped_ = 0;        // bytes of its mapping
  std::shared_ptr<std::byte> allocated_;
  std::vector<Piece> pieces_;  // in the order of need

  Context context_ = nullptr;
  unsigned flags_ = 0;
  std::vector<std::thread> threads_;
  std::atomic<std::size_t> next_read_{0}, next_pin_{0};
  std::atomic<std::size_t> left_{0};  // pieces that are not pinned
  std::atomic<bool> stopping_{false}, pinning_others_{false};
  /// A pointer, so that a forked child can leave it behind: its parent's threads may hold it.
  struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
  };
  std::unique_ptr<Gate> gate_ = std::make_unique<Gate>();
  std::exception_ptr failure_;
  Clock::time_point reading_, pinning_began_;
  std::size_t read_ = 0;  // pieces
};

/// One of them: null and empty for a buffer that is no parameter in the host's memory.
struct PinnedParameter {
  std::shared_ptr<PinnedParameters> memory;
  std::byte* data = nullptr;
  Bytes size{};
};

}  // namespace tvm_sched::runtime::cuda

#endif  // TVM_SCHED_RUNTIME_CUDA_PINNED_PARAMETERS_H_
