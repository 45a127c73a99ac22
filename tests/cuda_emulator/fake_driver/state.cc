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

State& TheState() {
  static State* state = [] {
    auto* made = new State;  // streams may outlive static objects
    if (const char* text = std::getenv("FAKE_CUDA_DEVICES")) made->devices = std::atoi(text);
    if (const char* text = std::getenv("FAKE_CUDA_PEERS")) made->peers = std::atoi(text) != 0;
    if (const char* text = std::getenv("FAKE_CUDA_MEMORY")) made->memory = std::atoll(text);
    if (const char* text = std::getenv("FAKE_CUDA_SEED")) made->random.seed(std::atoi(text));
    return made;
  }();
  return *state;
}

int Enter(const char* function) {
  std::lock_guard lock(TheState().mutex);
  return Count(function);
}

int Count(const char* function) {
  State& state = TheState();
  ++state.calls[function];
  if (state.fault != kOk) return state.fault;
  auto failure = state.failures.find(function);
  if (failure == state.failures.end() || failure->second.skip-- > 0) return kOk;
  const int code = failure->second.code;
  state.failures.erase(failure);
  return code;
}

StreamRecord* Resolve(StreamRecord* stream) {
  if (stream != nullptr || current == nullptr) return stream;
  StreamRecord*& made = current->default_stream;
  if (made == nullptr) {
    made = new StreamRecord{current};
    made->thread = std::thread(Loop, made);
  }
  return made;
}

void Loop(StreamRecord* stream) {
  State& state = TheState();
  std::unique_lock lock(state.mutex);
  while (true) {
    state.changed.wait(lock, [&] { return stream->closing || !stream->queue.empty(); });
    if (stream->queue.empty()) return;
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
}

void Submit(StreamRecord* stream, Work work, char kind) {
  if (stream->capture) {
    auto& nodes = stream->capture->nodes;
    nodes.push_back({std::move(work), stream->frontier});
    stream->frontier = {static_cast<int>(nodes.size()) - 1};
    return;
  }
  stream->queue.push_back({std::move(work), kind});
  TheState().changed.notify_all();
}

int OwnerOf(std::uintptr_t address, std::size_t size) {
  auto& allocations = TheState().allocations;
  auto found = allocations.upper_bound(address);
  if (found == allocations.begin()) return -2;
  --found;
  return address + size <= found->first + found->second.size ? found->second.device : -2;
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

void* Reserve(std::size_t size, int device) {
  void* memory = std::aligned_alloc(256, (size + 255) / 256 * 256);
  std::memset(memory, 0xFF, size);  // NaN in all types: what nobody has written shall be seen
  TheState().allocations[reinterpret_cast<std::uintptr_t>(memory)] = {size, device};
  return memory;
}

int Release(std::uintptr_t address) {
  State& state = TheState();
  std::lock_guard lock(state.mutex);
  const auto found = state.allocations.find(address);
  if (found == state.allocations.end() || found->second.registered) return kInvalidValue;
  state.allocations.erase(found);
  std::free(reinterpret_cast<void*>(address));
  return kOk;
}

int SubmitCopy(std::uintptr_t to, std::uintptr_t from, std::size_t size, StreamRecord* stream) {
  const char kind = OwnerOf(from, size) == -1 ? 'H' : OwnerOf(to, size) == -1 ? 'D' : 0;
  Submit(
      stream,
      [=] { std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), size); },
      kind);
  return kOk;
}

int CopyBetween(std::uintptr_t to, std::uintptr_t from, std::size_t size, StreamRecord* stream) {
  if (const int failed = Count("copy between GPUs"); failed != kOk) return failed;
  auto& contexts = TheState().contexts;
  const int target = OwnerOf(to, size), source = OwnerOf(from, size);
  const bool peers = contexts.at(source).peers.count(target) > 0;
  return peers ? SubmitCopy(to, from, size, stream) : kNotEnabled;
}

void RunGraph(const GraphRecord& graph) {
  std::minstd_rand random(static_cast<unsigned>(graph.nodes.size()));
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
