// Cuts of orders, annealing, genetic search and the program over ideals, on small graphs.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <stdexcept>

#include "search/partition/ideals.h"
#include "search/partition/max_flow.h"
#include "search/partition/orders.h"
#include "search/partition/peak_memory.h"
#include "search/partition/refine.h"
#include "search/partition/segment_costs.h"
#include "search/partition/slice.h"
#include "search/partition/stage_value.h"
#include "search/random.h"

namespace tvm_sched::partition {
namespace {

const auto kNever = [] { return false; };

Graph RandomGraph(std::uint64_t seed, std::size_t nodes) {
  std::mt19937_64 random(seed);
  Graph graph;
  for (std::size_t v = 0; v < nodes; ++v) {
    graph.work.push_back(static_cast<double>(random() % 30));
    graph.parameters.push_back(static_cast<double>(random() % 30));
    graph.tensors.push_back({static_cast<NodeId>(v), static_cast<double>(random() % 20),
                             static_cast<double>(random() % 20), random() % 5 == 0});
    for (std::size_t w = v + 1; w < nodes; ++w) {
      if (random() % 3 == 0) graph.readers.value.push_back(static_cast<NodeId>(w));
    }
    graph.readers.EndRow();
  }
  Finish(graph);
  return graph;
}

double Bottleneck(const Graph& graph, const Stages& stages, std::size_t count) {
  const Order order = OrderOf(graph, stages);
  double worst = 0;
  for (std::size_t s = 0; s < count; ++s) {
    Order nodes;
    std::copy_if(order.begin(), order.end(), std::back_inserter(nodes),
                 [&](NodeId v) { return stages[v] == static_cast<std::int32_t>(s); });
    if (!nodes.empty()) worst = std::max(worst, StageCost(graph, nodes));
  }
  return worst;
}

TEST(PeakMemory, IsTheLargestSumOfWhatIsHeldAtAPosition) {
  PeakMemory peak(8);
  peak.Hold(0, 2, 5);
  peak.Hold(2, 4, 7);
  EXPECT_EQ(peak.Largest(), 12);
  peak.Hold(6, 6, 11);
  EXPECT_EQ(peak.Largest(), 12);
  peak.Clear();
  EXPECT_EQ(peak.Largest(), 0);
}

TEST(SegmentCosts, AgreeWithTheCostOfEachStage) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Graph graph = RandomGraph(seed, 12);
    if (seed % 2) graph.memory = 60, graph.overflow_time = 2;
    const Order order = KahnOrder(graph, Keys(12, 0));
    SegmentCosts costs(graph, order);
    for (std::size_t first = 0; first < 12; ++first) {
      const auto row = costs.Row(first, std::numeric_limits<double>::infinity());
      ASSERT_EQ(row.size(), 12 - first);
      for (std::size_t i = 0; i < row.size(); ++i) {
        EXPECT_NEAR(row[i], StageCost(graph, std::span(order).subspan(first, i + 1)), 1e-9);
      }
    }
  }
}

TEST(Slice, OfAnEmptyGraphCostsNothing) {
  Graph graph;
  Finish(graph);
  EXPECT_EQ(Slice(graph, {}, 4).cost, 0);
}

TEST(Slice, FindsNothingBelowItsBestCost) {
  const Graph graph = RandomGraph(3, 30);
  const Order order = KahnOrder(graph, Keys(30, 0));
  const Slicing best = Slice(graph, order, 5);
  EXPECT_TRUE(Slice(graph, order, 5, best.cost).ends.empty());
  EXPECT_EQ(Slice(graph, order, 5, best.cost * 1.01).cost, best.cost);
}

TEST(KahnOrder, IsTopologicalAndFollowsItsKeys) {
  const Graph graph = RandomGraph(5, 40);
  MersenneTwister random(1);
  Keys keys(40);
  for (double& key : keys) key = random.Unit();
  const Order order = KahnOrder(graph, keys);
  EXPECT_TRUE(IsTopological(graph, order));
  EXPECT_EQ(KahnOrder(graph, KeysOf(order)), order);
}

TEST(Evolve, DoesNotDependOnThreads) {
  const Graph graph = RandomGraph(7, 30);
  const Fitness fitness = [&](std::span<const double> keys, double limit) {
    return Slice(graph, KahnOrder(graph, keys), 4, limit).cost;
  };
  GeneticSettings settings{.population = 20, .generations = 10};
  const GeneticResult alone = Evolve(30, fitness, settings, {}, kNever);
  settings.threads = 3;
  EXPECT_EQ(Evolve(30, fitness, settings, {}, kNever).keys, alone.keys);
}

TEST(Evolve, StopsInTheMidstOfAGeneration) {
  const Fitness first_key = [](std::span<const double> keys, double) { return keys[0]; };
  const GeneticSettings settings{.population = 20, .generations = 10};
  std::size_t looks = 0;
  const GeneticResult found = Evolve(5, first_key, settings, {}, [&] { return ++looks >= 3; });
  EXPECT_EQ(found.evaluations, 3U);
  EXPECT_EQ(found.value, found.keys[0]);
  EXPECT_GE(found.value, Evolve(5, first_key, settings, {}, kNever).value);
  EXPECT_EQ(Evolve(5, first_key, settings, {}, [] { return true; }).evaluations, 1U);
}

TEST(Evolve, HandsOnWhatStopThrows) {
  const Fitness none = [](std::span<const double>, double) { return 0.0; };
  const auto interrupt = []() -> bool { throw std::runtime_error("interrupt"); };
  EXPECT_THROW(Evolve(5, none, {.population = 20, .threads = 2}, {}, interrupt),
               std::runtime_error);
}

TEST(Ideals, AreAsGoodAsAnyOrderAndAnyAnnealing) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const Graph graph = RandomGraph(seed, 11);
    const IdealPartition best = PartitionByIdeals(graph, {.stages = 3}, kNever);
    ASSERT_EQ(best.stages.size(), 11U);
    EXPECT_NEAR(Bottleneck(graph, best.stages, 3), best.cost, 1e-9);
    EXPECT_LE(best.cost, Slice(graph, KahnOrder(graph, Keys(11, 0)), 3).cost);
    const Stages refined =
        Refine(graph, Stages(11, 0), {.stages = 3, .seed = seed, .moves = 20'000}, kNever);
    EXPECT_LE(best.cost, Bottleneck(graph, refined, 3) + 1e-9);
  }
}

TEST(Ideals, AreGivenUpWhereThereAreTooMany) {
  Graph graph;  // 12 nodes without edges: 4096 ideals
  graph.work.assign(12, 1);
  graph.parameters.assign(12, 0);
  Finish(graph);
  EXPECT_EQ(PartitionByIdeals(graph, {.stages = 2}, kNever).ideals, 4096U);
  const IdealPartition refused =
      PartitionByIdeals(graph, {.stages = 2, .most_ideals = 100}, kNever);
  EXPECT_GT(refused.ideals, 100U);
  EXPECT_TRUE(refused.stages.empty());
}

TEST(Ideals, StopWhileTheyAreListed) {
  Graph graph;  // 12 nodes without edges
  graph.work.assign(12, 1);
  graph.parameters.assign(12, 0);
  Finish(graph);
  const IdealPartition stopped = PartitionByIdeals(graph, {.stages = 2}, [] { return true; });
  EXPECT_TRUE(stopped.stopped);
  EXPECT_LT(stopped.ideals, 4096U);
  EXPECT_TRUE(stopped.stages.empty());
}

TEST(MaxFlow, IsTheLeastCutOfAllSides) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    std::mt19937_64 random(seed);
    constexpr std::int32_t kNodes = 7;
    std::vector<std::vector<std::int64_t>> capacity(kNodes, std::vector<std::int64_t>(kNodes, 0));
    MaxFlow flow(kNodes);
    for (std::int32_t a = 0; a < kNodes; ++a) {
      for (std::int32_t b = 0; b < kNodes; ++b) {
        if (a == b || random() % 2 == 0) continue;
        capacity[a][b] = static_cast<std::int64_t>(random() % 20);
        flow.Add(a, b, capacity[a][b]);
      }
    }
    const auto cut = [&](const auto& on_source_side) {
      std::int64_t sum = 0;
      for (std::int32_t a = 0; a < kNodes; ++a) {
        for (std::int32_t b = 0; b < kNodes; ++b) {
          if (on_source_side(a) && !on_source_side(b)) sum += capacity[a][b];
        }
      }
      return sum;
    };
    std::int64_t least = MaxFlow::kInfinite;
    for (std::uint32_t side = 0; side < 1U << kNodes; ++side) {
      if ((side & 1U) == 0 || (side >> (kNodes - 1)) != 0) continue;  // from node 0 to the last
      least = std::min(least, cut([&](std::int32_t v) { return ((side >> v) & 1U) != 0; }));
    }
    EXPECT_EQ(flow.Solve(0, kNodes - 1), least);
    EXPECT_EQ(cut([&](std::int32_t v) { return flow.OnSourceSide(v); }), least);
  }
}

TEST(MostValuableStages, AreFoundOrProvedNotToBe) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const Graph graph = RandomGraph(seed, 9);
    StageValueSettings settings;
    for (std::size_t v = 0; v < 9; ++v)
      settings.value.push_back(static_cast<std::int64_t>(graph.work[v]));
    settings.limit = 120;
    for (settings.target = 0; settings.target < 400; ++settings.target) {
      const StageValue found = MostValuableStages(graph, settings, kNever);
      EXPECT_EQ(found.next, graph.nodes());
      if (found.better.empty()) break;
      for (const std::vector<NodeId>& stage : found.better) {
        double work = 0;
        for (NodeId v : stage) work += graph.work[v];
        EXPECT_GT(work, static_cast<double>(settings.target));
        EXPECT_LE(work, settings.limit);
      }
    }
    EXPECT_LE(settings.target, 120);  // work is a part of the cost
    settings.most = 1;
    const StageValue ended = MostValuableStages(graph, settings, kNever);
    EXPECT_EQ(ended.steps, 1);
    EXPECT_LT(ended.next, graph.nodes());
  }
}

TEST(MostValuableStages, AreFoundForTimesOfAnySizeWithAFiniteSum) {
  Graph graph = RandomGraph(3, 9);
  const double most = std::numeric_limits<double>::max() / 64;
  for (double& work : graph.work) work = most;
  for (Tensor& tensor : graph.tensors) tensor.transfer = 0;
  StageValueSettings settings{.value = std::vector<std::int64_t>(9, 1), .target = 1, .limit = most};
  EXPECT_TRUE(MostValuableStages(graph, settings, kNever).better.empty());
  settings.limit = 9 * most;
  EXPECT_FALSE(MostValuableStages(graph, settings, kNever).better.empty());
  for (double& work : graph.work) work *= 63;
  EXPECT_THROW(MostValuableStages(graph, settings, kNever), std::overflow_error);
}

}  // namespace
}  // namespace tvm_sched::partition
