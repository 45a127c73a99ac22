// The searches on problems small enough to work by hand.
#include <gtest/gtest.h>

#include <limits>

#include "search/list_schedule.h"
#include "search/local_search.h"
#include "search/region.h"

namespace tvm_sched::search {
namespace {

using simulate::Bytes;
using simulate::Matrix;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

/// Two branches of 100 and a join of 100 after an operator; a copy takes `copy`.
Region Fan(double copy, std::size_t devices) {
  Region region;
  region.devices = devices;
  region.time = Matrix<double>(3, devices, 100.0);
  Matrix<double> lag(devices, devices, copy);
  for (std::size_t d = 0; d < devices; ++d) lag(d, d) = 0.0;
  for (auto [from, to] : {std::pair{-1, 0}, {-1, 1}, {0, 2}, {1, 2}}) {
    region.edges.push_back({from, to, lag});
  }
  return region;
}

TEST(Region, BranchesShareADeviceOrPayForCopies) {
  EXPECT_EQ(LeastCost(Fan(10.0, 2), 1000), 210.0);
  EXPECT_EQ(LeastCost(Fan(10.0, 8), 1000), 210.0);
  EXPECT_EQ(LeastCost(Fan(110.0, 2), 1000), 300.0);
  EXPECT_EQ(LeastCost(Fan(10.0, 1), 1000), 300.0);
}

TEST(Region, OptionsHaveTimesAndPrices) {
  Region region = Fan(10.0, 2);
  region.time = Matrix<double>(3, 4, 100.0);  // two options on each device
  region.price = Matrix<double>(3, 4, 50.0);
  for (std::size_t o = 0; o < 3; ++o) {
    for (std::size_t i : {2, 3}) region.time(o, i) = 130.0, region.price(o, i) = 30.0;
  }
  // Dear and fast: 210 and 150. The branch beside the other one has 10 to spare; 30 more of time
  // save 20.
  EXPECT_EQ(LeastCost(region, 10000), 350.0);
  region.weight = 0.5;  // all cheap and slow: half of 270, and 90
  EXPECT_EQ(LeastCost(region, 10000), 225.0);
  EXPECT_EQ(LeastCost(region, 1), 0.5 * 200.0 + 90.0);
}

TEST(Region, WithoutNodesTheLongestPathIsTheBound) {
  EXPECT_EQ(LeastCost(Fan(110.0, 2), 1), 200.0);
}

TEST(Region, OperatorsThatRunNowhereTakeForEver) {
  Region region = Fan(10.0, 2);
  region.time(1, 0) = region.time(1, 1) = kInfinite;
  EXPECT_EQ(LeastCost(region, 1000), kInfinite);
}

/// Two operators in a chain with a parameter of 1000 ns each, on one device with a bus.
simulate::Problem Chain() {
  simulate::Problem problem;
  for (auto read : {std::vector<TensorId>{0}, {1, 2}}) {
    problem.inputs.value.insert(problem.inputs.value.end(), read.begin(), read.end());
    problem.inputs.EndRow();
  }
  for (TensorId made : {2, 3}) {
    problem.outputs.value.push_back(made);
    problem.outputs.EndRow();
  }
  problem.tensors = {{Bytes{1000}, kNone, true},
                     {Bytes{1000}, kNone, true},
                     {Bytes{8}, 0, false},
                     {Bytes{8}, 1, true}};
  problem.devices = {{Bytes{4000}, false}};
  problem.operator_time = {2, 1, Nanoseconds{100}};
  problem.direct_time = {2, 1, kNever};
  problem.host_read_time = {2, 1, Nanoseconds{1000}};
  problem.route = {2, 2, kNone};
  problem.route(0, 1) = 0;
  problem.route_channels.value = {0};
  problem.route_channels.EndRow();
  problem.route_speed = {0};
  problem.transfer_time = {1, 4, Nanoseconds{1000}};
  problem.channels = 1;
  return problem;
}

TEST(ListSchedule, LoadsAheadOfTheOperators) {
  const simulate::Problem chain = Chain();
  const Instance instance(chain);
  EXPECT_EQ(instance.rank[0], Nanoseconds{200});
  EXPECT_EQ(instance.tail[0], Nanoseconds{100});
  const Constructed made = Construct(instance, {{{true}, true}}, {0, 0}, 1.0);
  EXPECT_EQ(made.events.size(), 4u);
  EXPECT_EQ(made.latency, Nanoseconds{2100});
}

TEST(ListSchedule, WhatDoesNotFitGivesNothing) {
  const simulate::Problem chain = Chain();
  const Instance instance(chain);
  EXPECT_TRUE(Construct(instance, {{{true}, true}}, {0, 0}, 0.25).events.empty());
}

TEST(LocalSearch, PutsLoadsIntoTheOrderOfTheirReaders) {
  const simulate::Problem chain = Chain();
  const Instance instance(chain);
  // The second operator's parameter first: the first operator waits for 2000 ns.
  const Sequence late = {Event::Move(1, kHost, 0), Event::Move(0, kHost, 0),
                         Event::Run(0, 0, false), Event::Run(1, 0, false)};
  LocalSearch search(instance, 1.0, late, 0, Nanoseconds{2100});
  EXPECT_EQ(search.latency(), Nanoseconds{2200});
  search.Step(10000);
  EXPECT_EQ(search.latency(), Nanoseconds{2100});
  EXPECT_FALSE(search.Step(1));
}

}  // namespace
}  // namespace tvm_sched::search
