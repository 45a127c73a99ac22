// Topological orders from random keys, and the search for good keys.
#ifndef TVM_SCHED_SEARCH_PARTITION_ORDERS_H_
#define TVM_SCHED_SEARCH_PARTITION_ORDERS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "search/partition/graph.h"

namespace tvm_sched::partition {

using Keys = std::vector<double>;

/// Kahn's algorithm; among free nodes the one with the largest key comes first.
Order KahnOrder(const Graph& graph, std::span<const double> keys);

/// Keys that make `KahnOrder` give this topological order.
Keys KeysOf(std::span<const NodeId> order);

/// Minimum linear arrangement: sum over edges of distance in the order, each times its
/// weight.
///
/// \param weighted Weight an edge by its tensor's transfer time, else by 1.
double LinearArrangement(const Graph& graph, std::span<const NodeId> order, bool weighted);

/// Settings of the biased random-key genetic algorithm.
struct GeneticSettings {
  std::size_t population = 100, generations = 100;
  double elite = 0.2, mutants = 0.15;  // parts of the population
  double inherit = 0.7;                // probability that a child's key is its elite parent's
  std::uint64_t seed = 0;
  std::size_t threads = 1;
};

/// What keys are worth; smaller is better.
///
/// Called from several threads. Values of `limit` or more may be
/// given as infinity.
using Fitness = std::function<double(std::span<const double> keys, double limit)>;

struct GeneticResult {
  Keys keys;
  double value = 0;
  std::size_t evaluations = 0;
};

/// Biased random-key genetic algorithm (Goncalves and Resende 2011).
///
/// \param start Chromosomes of the first population; random ones fill it up.
/// \param stop Looked at after each value, on the caller's thread.
///
/// The result does not depend on the number of threads, unless it was stopped: then it is the best
/// of what was valued by then, of which there is something in any case.
GeneticResult Evolve(std::size_t nodes, const Fitness& fitness, const GeneticSettings& settings,
                     std::vector<Keys> start, const std::function<bool()>& stop);

}  // namespace tvm_sched::partition

#endif  // TVM_SCHED_SEARCH_PARTITION_ORDERS_H_
