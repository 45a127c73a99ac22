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

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace fake_cuda {

constexpr int kOk = 0, kInvalidValue = 1, kOutOfMemory = 2, kInvalidContext = 201, kNotReady = 600;
constexpr int kAlreadyEnabled = 704, kNotEnabled = 705;
constexpr int kAlreadyRegistered = 712, kNotRegistered = 713;
constexpr unsigned kRegisterReadOnly = 8;
constexpr int kCaptureUnsupported = 900, kUnjoined = 904, kIsolation = 905;

using Work = std::function<void()>;

/// Work noted by a capture, and what must be done before it.
struct Node {
  Work work;
  std::set<int> after;
};

struct GraphRecord {
  std::vector<Node> nodes;
  std::set<void*> streams;
};

struct ContextRecord {
  int device;
  std::set<int> peers;
  struct StreamRecord* default_stream = nullptr;  // made when it is first used
};

struct EventRecord {
  ContextRecord* context;
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
  std::deque<Submitted> queue;
  bool busy = false, closing = false;
  std::shared_ptr<GraphRecord> capture;
  std::set<int> frontier;
  std::thread thread;
};

struct Allocation {
  std::size_t size;
  int device;               // -1: pinned
  bool registered = false;  // memory of the process itself
};

struct Failure {
  int skip;
  int code;
};

/// Everything, under one lock; streams wait on one condition.
struct State {
  std::mutex mutex;
  std::condition_variable changed;
  int devices = 2;
  long long memory = 1LL << 30;
  bool peers = true;
  std::map<int, ContextRecord> contexts;
  std::map<std::uintptr_t, Allocation> allocations;
  std::map<std::string, Failure> failures;
  std::map<std::string, int> calls;
  std::string trace;
  /// What a kernel did wrong: the code that every function returns from then on, and the words.
  std::atomic<int> fault = 0;
  std::string fault_text;

  void Note(char kind) {
    if (kind != 0) trace += kind;
  }
  std::minstd_rand random{1};
};

State& TheState();

/// The context that the calling thread has set.
extern thread_local ContextRecord* current;

/// Count a call and say whether it shall fail; Count under the lock.
int Enter(const char* function);
int Count(const char* function);

#define ENTER(name)                                     \
  if (const int failed = Enter(#name); failed != kOk) { \
    return failed;                                      \
  }

/// The stream itself, or the default stream of the current context for null. Under the lock.
StreamRecord* Resolve(StreamRecord* stream);
/// What a stream's thread does.
void Loop(StreamRecord* stream);
/// In the stream's order, now or in the graph that it is captured into. Under the lock.
void Submit(StreamRecord* stream, Work work, char kind = 0);
/// The device of memory that was allocated here: -1 where it is pinned, -2 where it is neither.
int OwnerOf(std::uintptr_t address, std::size_t size);
/// Whether a range of the process's memory is mapped, and for writing, too, unless it is
/// `read_only`.
bool ReadableAndWritable(std::uintptr_t begin, std::size_t size, bool read_only);
long long Used(int device);
void* Reserve(std::size_t size, int device);
int Release(std::uintptr_t address);
int SubmitCopy(std::uintptr_t to, std::uintptr_t from, std::size_t size, StreamRecord* stream);
/// A copy between two GPUs by unified addresses, which here must be peers: counted as "copy between
/// GPUs".
int CopyBetween(std::uintptr_t to, std::uintptr_t from, std::size_t size, StreamRecord* stream);
/// Any order that the graph's edges allow.
void RunGraph(const GraphRecord& graph);

}  // namespace fake_cuda

#endif  // TVM_SCHED_TESTS_CUDA_EMULATOR_STATE_H_
