#include "search/partition/orders.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <mutex>
#include <queue>
#include <system_error>
#include <thread>

#include "search/random.h"

namespace tvm_sched::partition {

namespace {

struct Chromosome {
  Keys keys;
  double value = std::numeric_limits<double>::infinity();
};

Keys RandomKeys(std::size_t nodes, MersenneTwister& random) {
  Keys keys(nodes);
  for (double& key : keys) key = random.Unit();
  return keys;
}

/// Values the chromosomes from `begin` on, on several threads; one at least. Those that are
/// left when it is to stop are worth nothing.
///
/// \return The number of those valued.
std::size_t Evaluate(std::vector<Chromosome>& population, std::size_t begin, const Fitness& fitness,
                     double limit, std::size_t threads, const std::function<bool()>& stop) {
  std::atomic<std::size_t> next{begin};
  std::atomic<std::size_t> valued{0};
  std::atomic<bool> stopped{false};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&](bool looks) {
    try {
      for (std::size_t i = next++; i < population.size(); i = next++) {
        population[i].value = fitness(population[i].keys, limit);
        ++valued;
        if (looks && stop()) stopped = true;
        if (stopped) break;
      }
    } catch (...) {
      stopped = true;
      const std::scoped_lock lock(mutex);
      failure = std::current_exception();
    }
  };
  std::vector<std::jthread> helpers;
  for (std::size_t t = 1; t < std::min(threads, population.size() - begin); ++t) {
    try {
      helpers.emplace_back(work, false);
    } catch (const std::system_error&) {
      break;  // the system has no more threads: the others do it
    }
  }
  work(true);  // `stop` may ask Python, which only the caller's thread may do
  helpers.clear();
  if (failure) std::rethrow_exception(failure);
  return valued;
}

void SortByValue(std::vector<Chromosome>& population) {
  std::stable_sort(population.begin(), population.end(),
                   [](const Chromosome& a, const Chromosome& b) { return a.value < b.value; });
}

}  // namespace

Order KahnOrder(const Graph& graph, std::span<const double> keys) {
  const std::size_t n = graph.nodes();
  std::vector<std::size_t> waiting(n);
  using Free = std::pair<double, NodeId>;
  const auto later = [](const Free& a, const Free& b) {
    return a.first < b.first || (a.first == b.first && a.second > b.second);
  };
  std::priority_queue<Free, std::vector<Free>, decltype(later)> free(later);
  for (std::size_t v = 0; v < n; ++v) {
    waiting[v] = graph.predecessors[v].size();
    if (waiting[v] == 0) free.emplace(keys[v], static_cast<NodeId>(v));
  }
  Order order;
  order.reserve(n);
  while (!free.empty()) {
    const NodeId u = free.top().second;
    free.pop();
    order.push_back(u);
    for (NodeId v : graph.successors[u]) {
      if (--waiting[v] == 0) free.emplace(keys[v], v);
    }
  }
  return order;
}

Keys KeysOf(std::span<const NodeId> order) {
  Keys keys(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    keys[order[i]] = 1 - (static_cast<double>(i) + 0.5) / static_cast<double>(order.size());
  }
  return keys;
}

double LinearArrangement(const Graph& graph, std::span<const NodeId> order, bool weighted) {
  std::vector<std::size_t> position(graph.nodes());
  for (std::size_t i = 0; i < order.size(); ++i) position[order[i]] = i;
  double sum = 0;
  for (std::size_t t = 0; t < graph.tensors.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    if (tensor.producer == kNone) continue;
    for (NodeId reader : graph.readers[t]) {
      const double distance =
          static_cast<double>(position[reader]) - static_cast<double>(position[tensor.producer]);
      sum += (weighted ? tensor.transfer : 1.0) * std::abs(distance);
    }
  }
  return sum;
}

GeneticResult Evolve(std::size_t nodes, const Fitness& fitness, const GeneticSettings& settings,
                     std::vector<Keys> start, const std::function<bool()>& stop) {
  MersenneTwister random(settings.seed);
  const std::size_t size = std::max<std::size_t>(settings.population, 2);
  const auto part = [size](double fraction) {
    return std::clamp<std::size_t>(static_cast<std::size_t>(fraction * static_cast<double>(size)),
                                   1, size - 1);
  };
  const std::size_t elite = part(settings.elite),
                    mutants = std::min(part(settings.mutants), size - elite);
  std::vector<Chromosome> population(size);
  for (std::size_t i = 0; i < size; ++i) {
    population[i].keys = i < start.size() ? std::move(start[i]) : RandomKeys(nodes, random);
  }
  constexpr double kNoLimit = std::numeric_limits<double>::infinity();
  std::size_t evaluations = Evaluate(population, 0, fitness, kNoLimit, settings.threads, stop);
  SortByValue(population);
  for (std::size_t generation = 1; generation < settings.generations && !stop(); ++generation) {
    std::vector<Chromosome> next(population.begin(),
                                 population.begin() + static_cast<std::ptrdiff_t>(elite));
    next.resize(size);
    for (std::size_t i = elite; i < size; ++i) {
      if (i >= size - mutants) {
        next[i].keys = RandomKeys(nodes, random);
        continue;
      }
      const Keys& first = population[random.Below(elite)].keys;
      const Keys& second = population[elite + random.Below(size - elite)].keys;
      next[i].keys.resize(nodes);
      for (std::size_t v = 0; v < nodes; ++v) {
        next[i].keys[v] = random.Unit() < settings.inherit ? first[v] : second[v];
      }
    }
    // Children worse than the worst of the elite never become parents of the better kind, so their
    // exact values do not matter.
    evaluations += Evaluate(next, elite, fitness, next[elite - 1].value, settings.threads, stop);
    population = std::move(next);
    SortByValue(population);
  }
  return {std::move(population.front().keys), population.front().value, evaluations};
}

}  // namespace tvm_sched::partition
