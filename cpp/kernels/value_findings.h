// What kernels of libraries are compared with before their first use, and what was found.
#ifndef TVM_SCHED_KERNELS_VALUE_FINDINGS_H_
#define TVM_SCHED_KERNELS_VALUE_FINDINGS_H_

#include <bit>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/cache_lines.h"

namespace tvm_sched {

/// A prime, so that no extent is a multiple of it.
inline constexpr std::size_t kSmallNumbers = 8191;

/// 1, 2 or 3, of either sign, of pseudo-random order: a float32 sum of some 10^6 products of them
/// is exact.
inline const std::vector<float>& SmallNumbers() {
  static const std::vector<float> table = [] {
    std::mt19937 random(7);
    std::vector<float> made(kSmallNumbers);
    for (float& each : made) {
      const auto drawn = random() >> 8;
      each = static_cast<float>(1 + drawn % 3) * (drawn / 3 % 2 == 0 ? 1.0F : -1.0F);
    }
    return made;
  }();
  return table;
}

/// 128 bits as hexadecimal digits.
inline std::string Hash(const std::string& text) {
  std::uint64_t halves[2] = {0xcbf29ce484222325,
                             0x9ae16a3b2f90404f};  // FNV-1a, and with other numbers
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    halves[0] = (halves[0] ^ byte) * 0x100000001b3;
    halves[1] = (std::rotl(halves[1], 23) + byte) * 0xc2b2ae3d27d4eb4f;
  }
  std::ostringstream digits;
  digits << std::hex;
  for (const std::uint64_t half : halves) {
    digits.width(16);
    digits.fill('0');
    digits << half;
  }
  return digits.str();
}

/// What was found, by key: in this process, and in the file of the cache.
class ValueFindings {
 public:
  explicit ValueFindings(const std::string& file) : file_(file, kMostBytes) {
    for (const std::string& line : file_.Read()) {
      if (line.starts_with("right ")) right_.insert(line.substr(6));
      if (line.starts_with("wrong ")) NoteWrong(line.substr(6));
    }
  }

  /// Whether a kernel is right: as is known by this key, or else as `compare` finds, which says
  /// what is wrong, if anything. Others who ask meanwhile wait for it, and get what it throws.
  bool IsRight(const std::string& key, const std::function<std::optional<std::string>()>& compare) {
    if (const std::optional<bool> known = Find(key)) return *known;
    try {
      const std::optional<std::string> finding = compare();
      Keep(key, finding);
      return !finding;
    } catch (...) {
      Fail(key);
      throw;
    }
  }

  void Trust(const std::vector<std::string>& keys) {
    const std::lock_guard lock(mutex_);
    for (const std::string& key : keys) {
      if (!wrong_.contains(key)) right_.insert(key);
    }
  }

  /// Sentences of what is wrong which hold `where`, a machine's description.
  std::vector<std::string> Wrong(const std::string& where) {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> found;
    for (const auto& [unused, finding] : wrong_) {
      const std::size_t at = finding.find(where);
      if (at == std::string::npos) continue;
      const std::size_t end = at + where.size();  // version 901 is no part of 90100
      if (end == finding.size() || !std::isdigit(static_cast<unsigned char>(finding[end])))
        found.push_back(finding);
    }
    return found;
  }

  /// How many kernels this process compared.
  int Count() {
    const std::lock_guard lock(mutex_);
    return run_;
  }

 private:
  static constexpr std::size_t kMostBytes = 4 << 20;  // of the file: a larger one is begun anew

  /// Whether it is known to be right or wrong; else the caller is the one to find out.
  std::optional<bool> Find(const std::string& key) {
    std::unique_lock lock(mutex_);
    if (right_.contains(key)) return true;
    if (wrong_.contains(key)) return false;
    const auto [entry, first] = under_way_.try_emplace(key);
    if (first) return std::nullopt;
    const std::shared_future<bool> found = entry->second.found;
    lock.unlock();
    return found.get();
  }

  void Keep(const std::string& key, const std::optional<std::string>& finding) {
    const std::lock_guard lock(mutex_);
    ++run_;
    if (finding) {
      NoteWrong(key + '\t' + *finding);
    } else {
      right_.insert(key);
    }
    file_.Add(finding ? "wrong " + key + '\t' + *finding : "right " + key);
    under_way_.at(key).promise.set_value(!finding);
    under_way_.erase(key);
  }

  void Fail(const std::string& key) {
    const std::lock_guard lock(mutex_);
    under_way_.at(key).promise.set_exception(std::current_exception());
    under_way_.erase(key);
  }

  void NoteWrong(const std::string& line) {
    const std::size_t tab = line.find('\t');
    if (tab != std::string::npos) wrong_[line.substr(0, tab)] = line.substr(tab + 1);
  }

  std::mutex mutex_;
  runtime::CacheLines file_;
  std::set<std::string> right_;
  std::map<std::string, std::string> wrong_;
  struct UnderWay {
    std::promise<bool> promise;
    std::shared_future<bool> found{promise.get_future()};
  };
  std::map<std::string, UnderWay> under_way_;
  int run_ = 0;
};

}  // namespace tvm_sched

#endif  // TVM_SCHED_KERNELS_VALUE_FINDINGS_H_
