// The fake driver's work: streams that run late, memory with owners, graphs in any order.
#include "state.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

namespace fake_cuda {

thread_local ContextRecord* current = nullptr;
thread_local std::vector<Range> noted;

State& TheState() {
  static State* state = [] {
    auto* made = new State;  // streams may outlive static objects
    if (const char* text = std::getenv("FAKE_CUDA_DEVICES")) made->devices = std::atoi(text);
    if (const char* text = std::getenv("FAKE_CUDA_PEERS")) made->peers = Peers{std::atoi(text)};
    if (const char* text = std::getenv("FAKE_CUDA_MEMORY")) made->memory = std::atoll(text);
    if (const char* text = std::getenv("FAKE_CUDA_PINNED")) made->pinned = std::atoll(text);
    if (const char* text = std::getenv("FAKE_CUDA_SEED")) made->random.seed(std::atoi(text));
    return made;
  }();
  return *state;
}

int Enter(const char* function) {
  std::lock_guard lock(TheState().mutex);
  return Count(function);
}

namespace {

/// A failure that was asked for, or kOk.
int Injected(const char* function) {
  State& state = TheState();
  ++state.calls[function];
  auto failure = state.failures.find(function);
  if (failure == state.failures.end() || failure->second.skip-- > 0) return kOk;
  const int code = failure->second.code;
  if (failure->second.loses && current != nullptr) state.lost.insert(current);
  state.failures.erase(failure);
  // A GPU that is lost does nothing more of what it was given.
  if (code == kIllegalAddress || code == kLaunchFailed) state.accesses.Clear();
  return code;
}

}  // namespace

int Count(const char* function) {
  const int injected = Injected(function);
  const int fault = TheState().fault;
  if (fault == kOk && current != nullptr && TheState().lost.count(current) > 0) {
    return kLaunchFailed;
  }
  return fault != kOk ? fault : injected;
}

int EnterAlways(const char* function) {
  std::lock_guard lock(TheState().mutex);
  return Injected(function);
}

void SetFault(int code, const std::string& text) {
  State& state = TheState();
  std::fprintf(stderr, "emulated GPU: %s\n", text.c_str());
  if (state.fault != kOk) return;
  state.fault_text = text;
  state.fault = code;
}

StreamRecord* MakeStream(ContextRecord* context) {
  State& state = TheState();
  auto* stream = new StreamRecord{context};
  stream->number = ++state.streams_made;
  if (state.free_timelines.empty()) {
    stream->timeline = state.timelines++;
  } else {
    stream->timeline = state.free_timelines.back();
    state.free_timelines.pop_back();
  }
  state.streams.insert(stream);
  std::thread(Loop, stream).detach();
  return stream;
}

StreamRecord* Resolve(StreamRecord* stream) {
  State& state = TheState();
  if (stream != nullptr) return state.streams.count(stream) > 0 ? stream : nullptr;
  if (current == nullptr) return nullptr;
  StreamRecord*& made = current->default_stream;
  if (made == nullptr) made = MakeStream(current);
  return made;
}

void Loop(StreamRecord* stream) {
  State& state = TheState();
  std::unique_lock lock(state.mutex);
  while (true) {
    state.changed.wait(lock, [&] { return stream->closing || !stream->queue.empty(); });
    if (stream->queue.empty()) break;
    const Submitted next = std::move(stream->queue.front());
    stream->queue.pop_front();
    stream->busy = true;
    const auto late = std::chrono::microseconds(state.random() % 200);
    lock.unlock();
    std::this_thread::sleep_for(late);
    lock.lock();
    state.Note(next.kind);
    lock.unlock();
    next.work();
    lock.lock();
    state.Note(static_cast<char>(std::tolower(next.kind)));
    stream->busy = false;
    state.changed.notify_all();
  }
  delete stream;
}

namespace {

std::string NameOf(const StreamRecord& stream) {
  return " on stream " + std::to_string(stream.number) + " of GPU " +
         std::to_string(stream.context->device);
}

/// "bytes 64 to 127 of 4096 on GPU 1"
std::string Place(const Range& range) {
  auto& allocations = TheState().allocations;
  auto found = allocations.upper_bound(range.begin);
  if (found == allocations.begin()) return "memory that is freed";
  --found;
  const auto& [address, allocation] = *found;
  if (range.begin >= address + allocation.size) return "memory that is freed";
  return "bytes " + std::to_string(range.begin - address) + " to " +
         std::to_string(range.end - 1 - address) + " of " + std::to_string(allocation.size) +
         (allocation.device == -1 ? " that are pinned"
                                  : " on GPU " + std::to_string(allocation.device));
}

void Tell(const Conflict& conflict, const std::string& remedy) {
  if (++TheState().conflicts > 1) return;  // others follow from the first one
  SetFault(kUnknown, "no order: " + conflict.later->what +
                         (conflict.where.written ? " writes " : " reads ") + Place(conflict.where) +
                         ", which " + conflict.earlier->what +
                         (conflict.earlier_writes ? " writes" : " reads") + "; " + remedy);
}

/// What is no longer, or not yet, allocated cannot be touched.
void CheckAllocated(const std::string& what, const Range& range) {
  // Registered pieces may lie side by side.
  std::uintptr_t at = range.begin;
  while (at < range.end && Find(at, 1) != nullptr) {
    const auto found = std::prev(TheState().allocations.upper_bound(at));
    at = found->first + found->second.size;
  }
  if (at >= range.end) return;
  ++TheState().conflicts;
  SetFault(kUnknown, what + " touches memory that is freed");
}

void Touch(const Touching& touching, int timeline, VectorClock& clock, const std::string& where) {
  State& state = TheState();
  const auto own = static_cast<std::size_t>(timeline);
  if (clock.size() <= own) clock.resize(own + 1);
  ++clock[own];
  if (touching.ranges.empty()) return;
  const auto operation =
      std::make_shared<const Operation>(Operation{touching.what + where, timeline, clock[own]});
  const auto before = [&clock](const Operation& other) {
    const auto line = static_cast<std::size_t>(other.timeline);
    return line < clock.size() && other.time <= clock[line];
  };
  for (const Range& range : touching.ranges) {
    CheckAllocated(operation->what, range);
    state.accesses.Touch(range, operation, before, [](const Conflict& conflict) {
      Tell(conflict, "neither waits for the other");
    });
  }
}

}  // namespace

void Submit(StreamRecord* stream, Work work, char kind, Touching touching) {
  if (stream->capture) {
    auto& nodes = stream->capture->nodes;
    nodes.push_back({std::move(work), std::move(touching), stream->frontier});
    stream->frontier = {static_cast<int>(nodes.size()) - 1};
    return;
  }
  Join(stream->clock, TheState().host);
  Touch(touching, stream->timeline, stream->clock, NameOf(*stream));
  stream->queue.push_back({std::move(work), kind});
  TheState().changed.notify_all();
}

Touching KernelTouching(const std::string& name, const std::vector<std::uintptr_t>& arguments) {
  Touching touching{"kernel \"" + name + "\"", noted};
  auto& allocations = TheState().allocations;
  for (std::uintptr_t address : arguments) {
    const bool known = std::any_of(noted.begin(), noted.end(), [&](const Range& range) {
      return address == range.begin || (address > range.begin && address < range.end);
    });
    auto found = allocations.upper_bound(address);
    if (known || found == allocations.begin()) continue;
    --found;
    const std::uintptr_t end = found->first + found->second.size;
    if (address < end) touching.ranges.push_back({found->first, end, true});
  }
  return touching;
}

void TouchFromHost(const std::string& what, const std::vector<Range>& ranges) {
  Touch({what, ranges}, 0, TheState().host, "");
}

void CheckGraph(GraphRecord& graph) {
  Accesses accesses;
  const std::size_t count = graph.nodes.size();
  std::vector<std::vector<bool>> before(count, std::vector<bool>(count));
  for (std::size_t n = 0; n < count; ++n) {
    before[n][n] = true;
    for (int earlier : graph.nodes[n].after) {
      for (int k = 0; k <= earlier; ++k) before[n][k] = before[n][k] || before[earlier][k];
    }
    const auto operation = std::make_shared<const Operation>(Operation{
        graph.nodes[n].touching.what + ", node " + std::to_string(n) + " of a graph", 0, n});
    for (const Range& range : graph.nodes[n].touching.ranges) {
      accesses.Touch(
          range, operation, [&](const Operation& other) { return before[n][other.time]; },
          [](const Conflict& conflict) { Tell(conflict, "no edge of the graph orders them"); });
    }
  }
  graph.ranges = accesses.Ranges();
}

const Allocation* Find(std::uintptr_t address, std::size_t size) {
  auto& allocations = TheState().allocations;
  auto found = allocations.upper_bound(address);
  if (found == allocations.begin()) return nullptr;
  --found;
  return address + size <= found->first + found->second.size ? &found->second : nullptr;
}

int OwnerOf(std::uintptr_t address, std::size_t size) {
  const Allocation* found = Find(address, size);
  return found == nullptr ? -2 : found->device;
}

std::string WhyNotReached(std::uintptr_t address, const ContextRecord& context) {
  const Allocation* found = Find(address, 1);
  const std::string gpu = "GPU " + std::to_string(context.device);
  if (found == nullptr) return "is no address of " + gpu;
  if (found->device == -1) {
    if ((found->flags & kDeviceMap) == 0) return "is pinned, but not for kernels";
    if ((found->flags & kPortable) == 0 && found->context != &context) {
      return "is pinned for another context only";
    }
    return "";
  }
  if (found->device == context.device || context.peers.count(found->device) > 0) return "";
  return "lies on GPU " + std::to_string(found->device) + ", which " + gpu + " does not reach";
}

bool MayReach(int from, int to) {
  switch (TheState().peers) {
    case Peers::kNone:
      return false;
    case Peers::kAll:
      return true;
    case Peers::kPairs:
      return from / 2 == to / 2;
    case Peers::kHigher:
      return from < to;
  }
  return false;
}

bool ReadableAndWritable(std::uintptr_t begin, std::size_t size, bool read_only) {
  std::ifstream maps("/proc/self/maps");  // in the order of addresses
  std::uintptr_t covered = begin;
  for (std::string line; covered < begin + size && std::getline(maps, line);) {
    unsigned long low = 0, high = 0;
    char mode[5] = "";
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &low, &high, mode) != 3) return false;
    if (high <= covered) continue;
    if (low > covered || mode[0] != 'r' || (!read_only && mode[1] != 'w')) return false;
    covered = high;
  }
  return covered >= begin + size;
}

long long Used(int device) {
  long long used = 0;
  for (const auto& [address, allocation] : TheState().allocations) {
    if (allocation.device == device) used += static_cast<long long>(allocation.size);
  }
  return used;
}

void* Reserve(std::size_t size, int device, unsigned flags) {
  void* memory = std::aligned_alloc(256, (size + 255) / 256 * 256);
  std::memset(memory, 0xFF, size);  // NaN in all types: what nobody has written shall be seen
  TheState().allocations[reinterpret_cast<std::uintptr_t>(memory)] = {size, device, flags, current};
  return memory;
}

void Forget(std::map<std::uintptr_t, Allocation>::iterator allocation) {
  const std::uintptr_t begin = allocation->first, end = begin + allocation->second.size;
  TouchFromHost("the release of it", {{begin, end, true}});
  TheState().accesses.Forget(begin, end);
  TheState().allocations.erase(allocation);
}

int Release(std::uintptr_t address) {
  State& state = TheState();
  std::lock_guard lock(state.mutex);
  const auto found = state.allocations.find(address);
  if (found == state.allocations.end() || found->second.registered) return kInvalidValue;
  Forget(found);
  std::free(reinterpret_cast<void*>(address));
  return kOk;
}

int SubmitCopy(std::uintptr_t to, std::uintptr_t from, std::size_t size, StreamRecord* stream) {
  const char kind = OwnerOf(from, size) == -1 ? 'H' : OwnerOf(to, size) == -1 ? 'D' : 0;
  Submit(stream,
         [=] { std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), size); },
         kind,
         {"a copy of " + std::to_string(size) + " bytes",
          {{from, from + size, false}, {to, to + size, true}}});
  return kOk;
}

void AddSecond(StreamRecord* stream) {
  Submit(stream, [stream] { stream->late += std::chrono::seconds(1); });
}

int CopyBetween(std::uintptr_t to, std::uintptr_t from, std::size_t size, StreamRecord* stream) {
  if (const int failed = Count("copy between GPUs"); failed != kOk) return failed;
  const int target = OwnerOf(to, size), source = OwnerOf(from, size);
  const ContextRecord& doing = *stream->context;
  const int other = doing.device == target ? source : target;
  const bool reached =
      (doing.device == target || doing.device == source) && doing.peers.count(other) > 0;
  if (!reached) return kNotEnabled;
  SubmitCopy(to, from, size, stream);
  if (TheState().spoilt == Spoilt::kBytes && size > 0) {
    Submit(stream, [=] { ++*reinterpret_cast<unsigned char*>(to + size - 1); });
  }
  if (TheState().spoilt == Spoilt::kTime) AddSecond(stream);
  return kOk;
}

void RunGraph(const GraphRecord& graph) {
  std::minstd_rand random;
  {
    std::lock_guard lock(TheState().mutex);
    random.seed(TheState().random());
  }
  std::vector<bool> done(graph.nodes.size());
  for (std::size_t left = graph.nodes.size(); left > 0; --left) {
    std::vector<int> ready;
    for (std::size_t n = 0; n < done.size(); ++n) {
      const auto& after = graph.nodes[n].after;
      const bool free = std::all_of(after.begin(), after.end(), [&](int a) { return done[a]; });
      if (!done[n] && free) ready.push_back(static_cast<int>(n));
    }
    const int next = ready[random() % ready.size()];
    graph.nodes[next].work();
    done[next] = true;
  }
}

}  // namespace fake_cuda
