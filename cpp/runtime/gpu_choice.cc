#include "runtime/gpu_choice.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <numeric>

namespace tvm_sched::runtime {

namespace {

/// The first word with a digit, in small letters: "v100" of "Tesla V100-SXM2-16GB".
std::string Chip(const std::string& name) {
  std::string word;
  bool digit = false;
  for (std::size_t i = 0; i <= name.size(); ++i) {
    const auto letter = i < name.size() ? static_cast<unsigned char>(name[i]) : ' ';
    if (std::isalnum(letter)) {
      word += static_cast<char>(std::tolower(letter));
      digit = digit || std::isdigit(letter);
      continue;
    }
    if (digit) return word;
    word.clear();
  }
  return "";
}

/// Too little memory, another model, and pairs that are no peers: the first counts most.
using Cost = std::array<int, 3>;

class Search {
 public:
  Search(const std::vector<WantedGpu>& wanted, const Pairs& joined, const Gpus& gpus,
         std::vector<int> order)
      : wanted_(wanted), joined_(joined), gpus_(gpus), order_(std::move(order)) {}

  std::vector<int> Run() {
    Extend({});
    return best_;
  }

 private:
  /// Try GPUs for the next device, the first ones in their order first.
  void Extend(const Cost& cost) {
    if (chosen_.size() == wanted_.size()) {
      best_ = chosen_;
      least_ = cost;
      return;
    }
    for (int gpu : order_) {
      // kMostTried are enough to find a fitting way on machines of a few kinds of GPUs.
      if (least_ == Cost{} || tried_ > kMostTried) return;
      if (std::find(chosen_.begin(), chosen_.end(), gpu) != chosen_.end()) continue;
      const Cost with = Add(cost, gpu);
      if (!best_.empty() && with >= least_) continue;
      ++tried_;
      chosen_.push_back(gpu);
      Extend(with);
      chosen_.pop_back();
    }
  }

  Cost Add(Cost cost, int gpu) const {
    const std::size_t device = chosen_.size();
    cost[0] += wanted_[device].arena > gpus_.list[gpu].memory ? 1 : 0;
    cost[1] += SameModel(wanted_[device].model, gpus_.list[gpu].name) ? 0 : 1;
    for (std::size_t other = 0; other < device; ++other) {
      if (joined_.count({other, device}) == 0) continue;
      const int peer = chosen_[other];
      cost[2] += gpus_.peers[gpu][peer] && gpus_.peers[peer][gpu] ? 0 : 1;
    }
    return cost;
  }

  static constexpr int kMostTried = 100'000;

  const std::vector<WantedGpu>& wanted_;
  const Pairs& joined_;
  const Gpus& gpus_;
  std::vector<int> order_;
  std::vector<int> chosen_, best_;
  Cost least_{std::numeric_limits<int>::max(), 0, 0};
  int tried_ = 0;
};

}  // namespace

bool SameModel(const std::string& wanted, const std::string& found) {
  const std::string a = Chip(wanted), b = Chip(found);
  return a.empty() || b.empty() || a == b;
}

std::vector<int> ChooseGpus(const std::vector<WantedGpu>& wanted, const Pairs& joined,
                            const Gpus& gpus, bool in_order) {
  if (gpus.list.size() < wanted.size()) return {};
  std::vector<int> order(gpus.list.size());
  std::iota(order.begin(), order.end(), 0);
  if (!in_order) {
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return gpus.list[a].address < gpus.list[b].address; });
  }
  return Search(wanted, joined, gpus, std::move(order)).Run();
}

}  // namespace tvm_sched::runtime
