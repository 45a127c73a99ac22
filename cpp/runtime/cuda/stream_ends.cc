#include "runtime/cuda/stream_ends.h"

#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace tvm_sched::runtime::cuda {

namespace {

struct Ends {
  std::mutex mutex;
  std::map<Stream, std::vector<std::function<void()>>> releases;
  std::map<Stream, std::size_t> workspaces;
};

Ends& TheEnds() {
  static Ends* ends = new Ends;  // streams of static objects end late
  return *ends;
}

}  // namespace

void AtEndOfStream(Stream stream, std::function<void()> release) {
  Ends& ends = TheEnds();
  const std::lock_guard lock(ends.mutex);
  ends.releases[stream].push_back(std::move(release));
}

void EndStream(Stream stream) {
  Ends& ends = TheEnds();
  std::vector<std::function<void()>> releases;
  {
    const std::lock_guard lock(ends.mutex);
    ends.workspaces.erase(stream);
    if (auto node = ends.releases.extract(stream)) releases = std::move(node.mapped());
  }
  while (!releases.empty()) {
    releases.back()();
    releases.pop_back();
  }
}

void PlanWorkspace(Stream stream, std::size_t bytes) {
  Ends& ends = TheEnds();
  const std::lock_guard lock(ends.mutex);
  ends.workspaces[stream] = bytes;
}

std::optional<std::size_t> PlannedWorkspace(Stream stream) {
  Ends& ends = TheEnds();
  const std::lock_guard lock(ends.mutex);
  const auto found = ends.workspaces.find(stream);
  if (found == ends.workspaces.end()) return std::nullopt;
  return found->second;
}

}  // namespace tvm_sched::runtime::cuda
