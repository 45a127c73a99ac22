// Placement on clusters: cuts of chains, mixes of GPUs, embeddings, costs of links, ants.
#include <gtest/gtest.h>

#include "cluster/ants.h"

namespace tvm_sched::cluster {
namespace {

/// Four switches in a ring with one fibre a link; two GPUs of kinds 0, 1, 0, 1 at them. Each
/// delay is 1 ns.
Cluster Ring() {
  Cluster made;
  made.kinds = {{1e12, {10'000'000'000}}, {2e12, {10'000'000'000}}};
  for (int s = 0; s < 4; ++s) {
    made.switch_delay.push_back({1});
    made.pools.push_back({s, s % 2, s, {1}, {1'000'000'000}});
    made.links.push_back({{s, (s + 1) % 4}, {1}, {1'000'000'000}});
  }
  Finish(made);
  return made;
}

Residual AllOf(const Cluster& cluster) {
  return {std::vector<std::int64_t>(cluster.pools.size(), 2),
          std::vector<std::int64_t>(cluster.links.size(), 1)};
}

/// Blocks that take this many ns on kind 0 and half of it on kind 1, and hand on one byte.
Chain MakeChain(const std::vector<std::int64_t>& times, std::int64_t cycle, std::int64_t latency) {
  Chain chain;
  chain.time_before = {{{0}}, {{0}}};
  chain.memory_before = {{0}};
  for (std::size_t b = 0; b < times.size(); ++b) {
    for (std::int64_t k : {0, 1}) {
      std::vector<Nanoseconds>& sums = chain.time_before[static_cast<std::size_t>(k)];
      sums.push_back(sums.back() + Nanoseconds{times[b] / (k + 1)});
    }
    chain.memory_before.push_back(chain.memory_before.back() + Bytes{1});
    chain.input.push_back({b == 0 ? 0 : 1});
  }
  chain.cycle_limit = {cycle};
  chain.latency_limit = {latency};
  return chain;
}

TEST(Cluster, TransferTimesAreRoundedUp) {
  EXPECT_EQ(TransferTime({3}, {2'000'000'000}).count, 2);
  EXPECT_EQ(TransferTime({4}, {2'000'000'000}).count, 2);
  EXPECT_EQ(TransferTime({0}, {1}).count, 0);
}

TEST(Cluster, RoutesTakeFreeFibresOnly) {
  const Cluster ring = Ring();
  std::vector<std::int64_t> fibres(4, 1);
  EXPECT_EQ(ShortestRoute(ring, fibres, 0, 1)->links, std::vector<LinkId>{0});
  EXPECT_EQ(ShortestRoute(ring, fibres, 0, 1)->head.count, 1 + 1 + 1 + 1 + 1);
  fibres[0] = 0;
  EXPECT_EQ(ShortestRoute(ring, fibres, 0, 1)->links, (std::vector<LinkId>{3, 2, 1}));
  fibres[2] = 0;
  EXPECT_FALSE(ShortestRoute(ring, fibres, 0, 1));
  EXPECT_EQ(ShortestRoute(ring, fibres, 0, 0)->head.count, 3);
}

TEST(Chain, TheBestSplitBalancesUnequalGpus) {
  const Cluster ring = Ring();
  const Chain chain = MakeChain({20, 20, 20}, 1000, 1000);
  const std::vector<KindId> kinds{0, 1};
  const std::vector<Route> routes{FastestRoute(ring)};
  const std::optional<Split> split = BestSplit(ring, chain, kinds, routes);
  ASSERT_TRUE(split);
  EXPECT_EQ(split->ends, (std::vector<std::size_t>{1, 3}));
  EXPECT_EQ(split->cycle.count, 20);
  EXPECT_EQ(split->latency.count, 2 * 20 + 4);
}

TEST(Chain, LatencyMayAskForAnotherCutThanTheCycle) {
  // Cut before the last block: stages of 300 ns, a transfer of 353. Before the second: 400 and 4.
  const Cluster ring = Ring();
  Chain chain = MakeChain({200, 100, 300}, 1000, 2 * 353 + 353);
  chain.input = {{0}, {1}, {350}};
  const std::vector<KindId> kinds{0, 0};
  const std::vector<Route> routes{FastestRoute(ring)};
  EXPECT_EQ(BestSplit(ring, chain, kinds, routes)->cycle.count, 353);
  chain.latency_limit = {2 * 353 + 352};
  EXPECT_EQ(BestSplit(ring, chain, kinds, routes)->ends, (std::vector<std::size_t>{1, 3}));
  EXPECT_EQ(BestSplit(ring, chain, kinds, routes)->latency.count, 2 * 400 + 4);
  chain.latency_limit = {2 * 400 + 3};
  EXPECT_FALSE(BestSplit(ring, chain, kinds, routes));
}

TEST(Chain, MixesAreTheSmallestOnes) {
  const Cluster ring = Ring();
  const std::vector<std::int64_t> gpus{4, 4};
  std::vector<std::vector<std::int32_t>> found;
  for (const Mix& mix : Mixes(ring, MakeChain({40, 40}, 45, 1000), gpus, 0, 9, [] {})) {
    found.push_back(mix.gpus);
  }
  EXPECT_EQ(found, (std::vector<std::vector<std::int32_t>>{{0, 1}, {2, 0}}));
  EXPECT_EQ(Mixes(ring, MakeChain({40, 40}, 45, 1000), gpus, 2, 9, [] {}).size(), 3u);
}

TEST(Embed, RunsOfAKindStayTogetherAndHoldFewFibres) {
  const Cluster ring = Ring();
  Residual free = AllOf(ring);
  const Chain chain = MakeChain({40, 40, 40}, 100, 1000);
  const std::optional<Embedding> made =
      Embedder(ring, free).Embed(chain, std::vector<KindId>{0, 0, 1});
  ASSERT_TRUE(made);
  EXPECT_EQ(made->pools[0], made->pools[1]);
  EXPECT_EQ(made->Hops(), 1u);
  free.gpus = {1, 2, 1, 0};
  EXPECT_EQ(Embedder(ring, free).Embed(chain, std::vector<KindId>{0, 1, 1})->Hops(), 1u);
  // Both circuits want the same fibre.
  EXPECT_FALSE(Embedder(ring, free).Embed(chain, std::vector<KindId>{0, 0, 1}));
  free.fibres = {2, 2, 2, 2};
  EXPECT_EQ(Embedder(ring, free).Embed(chain, std::vector<KindId>{0, 0, 1})->Hops(), 3u);
  free.fibres = {0, 0, 0, 0};
  EXPECT_FALSE(Embedder(ring, free).Embed(chain, std::vector<KindId>{0, 1, 1}));
}

TEST(Costs, AreThoseOfEquations4And5) {
  const Cluster ring = Ring();
  const Residual free = AllOf(ring);
  const std::vector<double> gpus = GpuCosts(ring, free);
  EXPECT_DOUBLE_EQ(gpus[0], 1 * 10 * 2);
  EXPECT_DOUBLE_EQ(gpus[1], 2 * 10 * 2);
  const std::vector<double> links = LinkCosts(ring)(ring, free, gpus);
  // Its two switches' 4 pairs of GPUs over 3 links; of each pair of opposite switches half the
  // shortest paths, over 4.
  const double neighbours = 4 * (20 + 40) / 3.0;
  const double opposite = 0.5 * 4 * (20 + 20) / 4.0 + 0.5 * 4 * (40 + 40) / 4.0;
  for (double cost : links) EXPECT_NEAR(cost, neighbours + opposite, 1e-9);
}

TEST(Costs, LinksFromGpusToSwitchesCarryAllPathsOfTheirGpu) {
  const Cluster ring = Ring();
  Residual free = AllOf(ring);
  const std::vector<double> access =
      LinkCosts(ring).OfAccessLinks(ring, free, GpuCosts(ring, free));
  // From a GPU of kind 0: one of its pool over two links, four of kind 1 over three, two over four.
  EXPECT_NEAR(access[0], (20 + 20) / 2.0 + 4 * (20 + 40) / 3.0 + 2 * (20 + 20) / 4.0, 1e-9);
  EXPECT_NEAR(access[1], (40 + 40) / 2.0 + 4 * (20 + 40) / 3.0 + 2 * (40 + 40) / 4.0, 1e-9);
  free.gpus = {1, 0, 1, 0};
  EXPECT_NEAR(LinkCosts(ring).OfAccessLinks(ring, free, {20, 40, 20, 40})[0], (20 + 20) / 4.0,
              1e-9);
}

TEST(Ants, FindTheCheapestGpusAndRepeatWithTheirSeed) {
  const Cluster ring = Ring();
  const Residual free = AllOf(ring);
  const LinkCosts costs(ring);
  const Chain chain = MakeChain({40, 40}, 45, 1000);
  AntSettings settings;
  const std::optional<Embedding> found = SendAnts(ring, costs, free, chain, settings, [] {});
  ASSERT_TRUE(found);
  // One GPU of kind 1 and two of kind 0 in a rack cost the same, 40; one stage comes first.
  EXPECT_EQ(found->pools.size(), 1u);
  EXPECT_EQ(ring.pools[found->pools[0]].kind, 1);
  settings.least_stages = settings.most_stages = 2;
  const std::optional<Embedding> two = SendAnts(ring, costs, free, chain, settings, [] {});
  ASSERT_TRUE(two);
  EXPECT_EQ(two->Hops(), 0u);
  EXPECT_EQ(two->pools, SendAnts(ring, costs, free, chain, settings, [] {})->pools);
  EXPECT_FALSE(SendAnts(ring, costs, free, MakeChain({40, 40}, 10, 1000), settings, [] {}));
}

TEST(Costs, OverPoolsCountPairsOfPoolsAndWhatJoinsThemToSwitches) {
  const Cluster ring = Ring();
  Residual free = AllOf(ring);
  const std::vector<double> gpus = GpuCosts(ring, free);
  const LinkCosts::OfPools costs = LinkCosts(ring).OverPools(ring, free, gpus);
  // As above, but 1 pair of pools where there are 4 of GPUs.
  const double neighbours = (20 + 40) / 3.0;
  const double opposite = 0.5 * (20 + 20) / 4.0 + 0.5 * (40 + 40) / 4.0;
  for (double cost : costs.links) EXPECT_NEAR(cost, neighbours + opposite, 1e-9);
  EXPECT_NEAR(costs.access[0], 2 * (20 + 40) / 3.0 + (20 + 20) / 4.0, 1e-9);
  EXPECT_NEAR(costs.access[1], 2 * (20 + 40) / 3.0 + (40 + 40) / 4.0, 1e-9);
  free.gpus = {2, 0, 2, 0};  // no pool but 0 and 2
  for (double cost : LinkCosts(ring).OverPools(ring, free, gpus).links) {
    EXPECT_NEAR(cost, 0.5 * (20 + 20) / 4.0, 1e-9);
  }
}

TEST(Ants, CostsThatFallMakeTwoStagesInOneRackTheCheapest) {
  const Cluster ring = Ring();
  const Residual free = AllOf(ring);
  const LinkCosts costs(ring);
  const Chain chain = MakeChain({40, 40}, 45, 1000);
  AntSettings settings;
  settings.falling_costs = true;
  for (const bool sub_agents : {false, true}) {
    settings.sub_agents = sub_agents;
    const std::optional<Embedding> found = SendAnts(ring, costs, free, chain, settings, [] {});
    ASSERT_TRUE(found);
    // One GPU of kind 1 costs 40; two of kind 0 in a rack cost 20 + 10, for the second finds one.
    ASSERT_EQ(found->pools.size(), 2u);
    EXPECT_EQ(found->pools[0], found->pools[1]);
    EXPECT_EQ(ring.pools[found->pools[0]].kind, 0);
  }
  settings.first_rise = true;  // two stages are tried after one, and are cheaper
  EXPECT_EQ(SendAnts(ring, costs, free, chain, settings, [] {})->pools.size(), 2u);
  settings.falling_costs = false;  // two cost as much as one: no more are tried
  EXPECT_EQ(SendAnts(ring, costs, free, chain, settings, [] {})->pools.size(), 1u);
}

/// Two stages on pools 0 and 1, which alone have GPUs, one each; link 0 joins them, or 3, 2, 1.
/// Link 0 is on the only shortest path and costs 20; the other links are on none and are free.
std::size_t HopsOfTwo(const AntSettings& given, std::vector<std::int64_t> fibres = {}) {
  const Cluster ring = Ring();
  Residual free = AllOf(ring);
  free.gpus = {1, 1, 0, 0};
  if (!fibres.empty()) free.fibres = std::move(fibres);
  AntSettings settings = given;
  settings.least_stages = settings.most_stages = 2;
  const std::optional<Embedding> found =
      SendAnts(ring, LinkCosts(ring), free, MakeChain({40, 40}, 60, 1000), settings, [] {});
  return found.value().Hops();
}

TEST(Ants, SubAgentsTakeTheWayThatCostsLess) {
  AntSettings settings;
  settings.sub_agents = settings.pool_links = settings.pool_choice = true;
  EXPECT_EQ(HopsOfTwo(settings), 3u);
  EXPECT_EQ(HopsOfTwo(settings, {1, 0, 1, 1}), 1u);
}

TEST(Ants, LinksFromGpusThatCostMakeOneStageCheaperThanTwo) {
  const Cluster ring = Ring();
  const Residual free = AllOf(ring);
  const LinkCosts costs(ring);
  const Chain chain = MakeChain({40, 40}, 45, 1000);
  AntSettings settings;
  settings.falling_costs = true;
  ASSERT_EQ(SendAnts(ring, costs, free, chain, settings, [] {})->pools.size(), 2u);
  settings.access_links = true;  // 30 for the two GPUs, and 240 for the two links between them
  EXPECT_EQ(SendAnts(ring, costs, free, chain, settings, [] {})->pools.size(), 1u);
}

TEST(Ants, FreeWalksPassTheAimByWhereThatCostsLess) {
  AntSettings settings;
  EXPECT_EQ(HopsOfTwo(settings), 1u);
  settings.free_walks = true;
  EXPECT_EQ(HopsOfTwo(settings), 3u);
}

TEST(Ants, PipeEdgeTakesTheLeastCycle) {
  const Cluster ring = Ring();
  const Residual free = AllOf(ring);
  const LinkCosts costs(ring);
  AntSettings settings;
  settings.least_stages = settings.most_stages = 2;
  settings.sub_agents = settings.pool_choice = settings.fastest = true;
  const std::optional<Embedding> found =
      SendAnts(ring, costs, free, MakeChain({40, 40}, 45, 1000), settings, [] {});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->split.cycle.count, 20);  // two GPUs of kind 1
}

}  // namespace
}  // namespace tvm_sched::cluster
