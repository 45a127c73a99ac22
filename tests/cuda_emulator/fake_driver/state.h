// What the fake driver knows of contexts, memory, streams and graphs.
#ifndef TVM_SCHED_TESTS_CUDA_EMULATOR_STATE_H_
#define TVM_SCHED_TESTS_CUDA_EMULATOR_STATE_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "happens_before.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace fake_cuda {

constexpr int kOk = 0, kInvalidValue = 1, kOutOfMemory = 2, kInvalidContext = 201, kNotReady = 600;
constexpr int kPeersUnsupported = 217, kInvalidHandle = 400, kIllegalAddress = 700;
constexpr int kAlreadyEnabled = 704, kNotEnabled = 705, kLaunchFailed = 719, kUnknown = 999;
constexpr unsigned kPortable = 1, kDeviceMap = 2;  // of pinned memory
constexpr int kAlreadyRegistered = 712, kNotRegistered = 713;
constexpr unsigned kRegisterReadOnly = 8;
constexpr int kCaptureUnsupported = 900, kUnjoined = 904, kIsolation = 905;

using Work = std::function<void()>;

/// What a piece of work is, and what it touches.
struct Touching {
  std::string what;
  std::vector<Range> ranges;
};

/// Work noted by a capture, and what must be done before it.
struct Node {
  Work work;
  Touching touching;
  std::set<int> after;
};

struct GraphRecord {
  std::vector<Node> nodes;
  std::set<void*> streams;
  std::vector<Range> ranges;  // of all nodes, once it was instantiated
};

struct ContextRecord {
  int device;
  std::set<int> peers;
  struct StreamRecord* default_stream = nullptr;  // made when it is first used
};

struct EventRecord {
  ContextRecord* context;
  VectorClock clock;  // what is before its last record
  std::uint64_t recorded = 0, done = 0;
  std::chrono::steady_clock::time_point at;  // when it was done last
  std::shared_ptr<GraphRecord> capture;
  std::set<int> frontier;
};

struct Submitted {
  Work work;
  char kind;  // of fake_cuda_trace, or 0
};

struct StreamRecord {
  ContextRecord* context;
  int number = 0;  // for messages
  int timeline = 0;
  VectorClock clock;  // what is before its next piece of work
  std::deque<Submitted> queue;
  bool busy = false, closing = false;
  std::chrono::nanoseconds late{};  // what its slow copies add to the times of events
  std::shared_ptr<GraphRecord> capture;
  std::set<int> frontier;
};

struct Allocation {
  std::size_t size;
  int device;  // -1: pinned
  unsigned flags = 0;
  ContextRecord* context = nullptr;  // that pinned memory was made in
  bool registered = false;           // memory of the process itself
};

struct Failure {
  int skip;
  int code;
  bool loses;  // the GPU, for good
};

/// Which GPU reaches the memory of which other: none, each, those of a pair (0 and 1, 2 and 3), or
/// those with a higher number.
enum class Peers { kNone = 0, kAll = 1, kPairs = 2, kHigher = 3 };

/// What is wrong with copies, see fake_cuda_spoil_peers.
enum class Spoilt { kNothing = 0, kBytes = 1, kTime = 2, kTimeOfHost = 3 };

/// Everything, under one lock; streams wait on one condition.
struct State {
  std::mutex mutex;
  std::condition_variable changed;
  int devices = 2;
  long long memory = 1LL << 30;
  long long pinned = 1LL << 40;  // bytes that may be pinned
  Peers peers = Peers::kAll;
  Spoilt spoilt = Spoilt::kNothing;
  std::map<int, ContextRecord> contexts;
  std::map<std::uintptr_t, Allocation> allocations;
  std::map<std::string, Failure> failures;
  std::set<const ContextRecord*> lost;  // contexts of GPUs in which nothing works any more
  std::map<std::string, int> calls;
  std::string trace;
  /// What a kernel did wrong: the code that every function returns from then on, and the words.
  std::atomic<int> fault = 0;
  std::string fault_text;

  void Note(char kind) {
    if (kind != 0) trace += kind;
  }
  std::minstd_rand random{1};

  /// The order of accesses: what is before the host's next call, and who touched what.
  VectorClock host{0};
  Accesses accesses;
  int timelines = 1;                // 0 is the host's
  std::vector<int> free_timelines;  // all of which the host knows to have ended
  int streams_made = 0;
  int conflicts = 0;
  std::set<StreamRecord*> streams;
  std::map<EventRecord*, std::shared_ptr<EventRecord>> events;
  int graphs = 0, executables = 0, modules = 0;  // not destroyed yet
};

State& TheState();

/// The context that the calling thread has set.
extern thread_local ContextRecord* current;

/// What kernels touch that this thread launches, by `tvm_sched_kernel_accesses`.
extern thread_local std::vector<Range> noted;

/// Count a call and say whether it shall fail; Count under the lock.
int Enter(const char* function);
int Count(const char* function);
/// The same for functions that work after a fault, too: those that release something.
int EnterAlways(const char* function);

#define ENTER_ALWAYS(name)                                    \
  if (const int failed = EnterAlways(#name); failed != kOk) { \
    return failed;                                            \
  }

#define ENTER(name)                                     \
  if (const int failed = Enter(#name); failed != kOk) { \
    return failed;                                      \
  }

/// From now on every function returns this; the first one counts. Under the lock.
void SetFault(int code, const std::string& text);

StreamRecord* MakeStream(ContextRecord* context);
/// The stream itself, or the default stream of the current context for null; null for one that was
/// destroyed. Under the lock.
StreamRecord* Resolve(StreamRecord* stream);
/// What a stream's thread does.
void Loop(StreamRecord* stream);
/// In the stream's order, now or in the graph that it is captured into. Under the lock.
void Submit(StreamRecord* stream, Work work, char kind = 0, Touching touching = {});
/// What a kernel touches: what was noted for this thread; of other memory that its arguments point
/// to, all that was allocated with it. Under the lock.
Touching KernelTouching(const std::string& name, const std::vector<std::uintptr_t>& arguments);
/// An access of the host. Under the lock.
void TouchFromHost(const std::string& what, const std::vector<Range>& ranges);
/// What no edge of a graph orders is told, and its ranges are gathered. Under the lock.
void CheckGraph(GraphRecord& graph);

/// Null where nobody has allocated this. Under the lock, as the following.
const Allocation* Find(std::uintptr_t address, std::size_t size);
/// The device of memory that was allocated here: -1 where it is pinned, -2 where it is neither.
int OwnerOf(std::uintptr_t address, std::size_t size);
/// Why a kernel of a context cannot touch an address; empty where it can.
std::string WhyNotReached(std::uintptr_t address, const ContextRecord& context);
/// Whether a range of the process's memory is mapped, and for writing, too, unless it is
/// `read_only`.
bool ReadableAndWritable(std::uintptr_t begin, std::size_t size, bool read_only);
long long Used(int device);
void* Reserve(std::size_t size, int device, unsigned flags = 0);
int Release(std::uintptr_t address);
/// What is no longer allocated, or pinned, must have been used before. Under the lock.
void Forget(std::map<std::uintptr_t, Allocation>::iterator allocation);
/// Whether a GPU may reach the memory of another one.
bool MayReach(int from, int to);
int SubmitCopy(std::uintptr_t to, std::uintptr_t from, std::size_t size, StreamRecord* stream);
/// The times of a stream's later events are a second later than they were.
void AddSecond(StreamRecord* stream);
/// A copy between two GPUs by unified addresses: counted as "copy between GPUs". The stream's GPU
/// must be one of them and reach the other's memory.
int CopyBetween(std::uintptr_t to, std::uintptr_t from, std::size_t size, StreamRecord* stream);
/// Any order that the graph's edges allow.
void RunGraph(const GraphRecord& graph);

}  // namespace fake_cuda

#endif  // TVM_SCHED_TESTS_CUDA_EMULATOR_STATE_H_
