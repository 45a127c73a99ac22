#include "runtime/cores.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

namespace tvm_sched::runtime {

namespace {

constexpr int kMostThreads = 1 << 16;
/// The first version writes 2^63 rounded down to pages where there is no limit.
constexpr std::int64_t kNoLimit = std::int64_t{1} << 62;

/// The folders of this process's control groups that have a controller, from the top downwards.
std::vector<std::string> GroupFolders(const std::string& root, const std::string& controller) {
  const std::string mounted = root + "/sys/fs/cgroup";
  // In a namespace of its own a container sees its group at the top, whatever its path is.
  std::vector<std::string> folders = {mounted, mounted + "/" + controller};
  std::ifstream groups(root + "/proc/self/cgroup");
  // Lines such as 4:cpu,cpuacct:/docker/1a2b, and 0::/user.slice for the second version.
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    const bool has = ("," + names + ",").find("," + controller + ",") != std::string::npos;
    if ((!names.empty() && !has) || path.find("..") != std::string::npos) continue;
    std::vector<std::string> tops = {mounted};
    if (!names.empty()) tops = {mounted + "/" + names, mounted + "/" + controller};
    for (const std::string& top : tops) {
      for (std::size_t end = 0; end != std::string::npos;) {
        end = path.find('/', end + 1);
        folders.push_back(top + path.substr(0, end));
      }
      folders.push_back(top);
    }
  }
  return folders;
}

/// The numbers at the beginning of a file; none where it does not begin with one.
std::vector<std::int64_t> ReadNumbers(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::int64_t> numbers;
  for (std::int64_t number = 0; file >> number;) numbers.push_back(number);
  return numbers;
}

template <typename T>
void Lower(T limit, T* least) {
  if (limit > 0 && (*least == 0 || limit < *least)) *least = limit;
}

void LowerByQuota(std::int64_t quota, std::int64_t period, int* cores) {
  if (quota <= 0 || period <= 0) return;
  const std::int64_t whole = std::clamp<std::int64_t>(quota / period, 1, kMostThreads);
  Lower(static_cast<int>(whole), cores);
}

}  // namespace

ContainerLimits ReadContainerLimits(const std::string& root) {
  ContainerLimits limits;
  for (const std::string& folder : GroupFolders(root, "memory")) {
    // Above `memory.high` the system takes memory away rather than to end the process.
    for (const char* name : {"/memory.max", "/memory.high", "/memory.limit_in_bytes"}) {
      const std::vector<std::int64_t> limit = ReadNumbers(folder + name);
      if (!limit.empty() && limit[0] < kNoLimit) Lower(limit[0], &limits.memory);
    }
  }
  for (const std::string& folder : GroupFolders(root, "cpu")) {
    const std::vector<std::int64_t> both = ReadNumbers(folder + "/cpu.max");
    if (both.size() > 1) LowerByQuota(both[0], both[1], &limits.cores);
    const std::vector<std::int64_t> quota = ReadNumbers(folder + "/cpu.cfs_quota_us");
    const std::vector<std::int64_t> period = ReadNumbers(folder + "/cpu.cfs_period_us");
    if (!quota.empty() && !period.empty()) LowerByQuota(quota[0], period[0], &limits.cores);
  }
  return limits;
}

int AllowedCores() {
  static const int quota = ReadContainerLimits().cores;
  cpu_set_t set;
  const int cores = sched_getaffinity(0, sizeof(set), &set) == 0
                        ? CPU_COUNT(&set)
                        : static_cast<int>(std::thread::hardware_concurrency());
  return std::max(quota > 0 ? std::min(cores, quota) : cores, 1);
}

int Cores(int wanted, int compiled) {
  if (wanted > 0) return std::min(wanted, kMostThreads);
  if (const char* text = std::getenv("TVM_SCHED_NUM_THREADS")) {
    const int count = std::atoi(text);
    if (count > 0) return std::min(count, kMostThreads);
  }
  if (compiled > 0) return compiled;
  return AllowedCores();
}

Share ReadShare(const JsonCursor& field) {
  const std::vector<JsonCursor> numbers = field.Items();
  if (numbers.size() != 2) field.Unexpected("two integers: a part, and of how many");
  const auto whole = static_cast<int>(numbers[1].Int(1, kMostThreads));
  return {static_cast<int>(numbers[0].Int(1, whole)), whole};
}

int ReadThreads(const JsonCursor& field) { return static_cast<int>(field.Int(1, kMostThreads)); }

}  // namespace tvm_sched::runtime
