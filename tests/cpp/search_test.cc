// The search algorithms on graphs that were worked out by hand.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "search/annealing.h"
#include "search/heft.h"
#include "search/hios.h"
#include "search/lane.h"
#include "search/launches.h"
#include "search/partial_schedule.h"
#include "search/sequence_timer.h"
#include "simulate/simulate.h"

namespace tvm_sched::search {
namespace {

using simulate::Bytes;
using simulate::kNone;
using simulate::Nanoseconds;

constexpr Nanoseconds kCopy{10};

/// Operators that take `times` on each of the devices; each edge is a tensor of its own,
/// whose copies take 10 ns, in parallel or, with `queue`, one at a time.
simulate::Problem MakeProblem(const std::vector<std::int64_t>& times,
                              const std::vector<std::pair<int, int>>& edges, std::size_t devices,
                              bool queue = false) {
  simulate::Problem problem;
  for (std::size_t o = 0; o < times.size(); ++o) {
    for (std::size_t e = 0; e < edges.size(); ++e) {
      const auto t = static_cast<simulate::TensorId>(e);
      if (edges[e].second == static_cast<int>(o)) problem.inputs.value.push_back(t);
      if (edges[e].first == static_cast<int>(o)) problem.outputs.value.push_back(t);
    }
    problem.inputs.EndRow();
    problem.outputs.EndRow();
  }
  for (const auto& edge : edges) problem.tensors.push_back({Bytes{1}, edge.first, false});
  problem.devices.assign(devices, {Bytes{1 << 20}, true});
  problem.operator_time = {times.size(), devices, Nanoseconds{}};
  problem.direct_time = {times.size(), devices, simulate::kNever};
  problem.host_read_time = {times.size(), devices, Nanoseconds{}};
  for (std::size_t o = 0; o < times.size(); ++o) {
    for (std::size_t d = 0; d < devices; ++d) problem.operator_time(o, d) = Nanoseconds{times[o]};
  }
  problem.route = {devices + 1, devices + 1, kNone};
  for (std::size_t a = 1; a <= devices; ++a) {
    for (std::size_t b = 1; b <= devices; ++b) problem.route(a, b) = a == b ? kNone : 0;
  }
  if (queue) problem.route_channels.value = {0};
  problem.route_channels.EndRow();
  problem.channels = queue ? 1 : 0;
  problem.route_speed = {0};
  problem.transfer_time = {1, edges.size(), kCopy};
  return problem;
}

/// 0 leads to 1, 2 and 3, these to 4.
const std::vector<std::pair<int, int>> kFan = {{0, 1}, {0, 2}, {0, 3}, {1, 4}, {2, 4}, {3, 4}};

std::int64_t Latency(const simulate::Problem& problem, const simulate::Schedule& schedule) {
  return simulate::SimulateOrThrow(problem, schedule).times.latency.count;
}

std::int64_t Earliest(const Lane& lane, std::int64_t ready, std::int64_t duration) {
  return lane.Earliest(Nanoseconds{ready}, Nanoseconds{duration}).count;
}

TEST(Lane, TakesTheFirstGapThatIsLongEnough) {
  Lane lane(Lane::kAllGaps);
  const auto occupy = [&](std::int64_t begin, std::int64_t end) {
    lane.Occupy(Nanoseconds{begin}, Nanoseconds{end});
  };
  const auto release = [&](std::int64_t begin, std::int64_t end) {
    lane.Release(Nanoseconds{begin}, Nanoseconds{end});
  };
  occupy(10, 20);
  occupy(25, 40);
  EXPECT_EQ(Earliest(lane, 0, 10), 0);
  EXPECT_EQ(Earliest(lane, 0, 11), 40);
  EXPECT_EQ(Earliest(lane, 12, 5), 20);
  EXPECT_EQ(Earliest(lane, 12, 6), 40);
  occupy(20, 25);  // what takes no time still fits between two others
  EXPECT_EQ(Earliest(lane, 12, 0), 20);
  EXPECT_EQ(Earliest(lane, 12, 1), 40);
  release(20, 25);
  EXPECT_EQ(Earliest(lane, 12, 5), 20);
  release(10, 20);
  EXPECT_EQ(Earliest(lane, 0, 25), 0);
  release(25, 40);
  EXPECT_EQ(Earliest(lane, 3, 100), 3);
}

TEST(Lane, ForgetsTheShortestGap) {
  Lane lane(1), none;
  for (Lane* each : {&lane, &none}) {
    each->Occupy(Nanoseconds{10}, Nanoseconds{20});
    each->Occupy(Nanoseconds{25}, Nanoseconds{40});
  }
  EXPECT_EQ(Earliest(lane, 0, 10), 0);
  EXPECT_EQ(Earliest(lane, 12, 5), 40);
  EXPECT_EQ(Earliest(none, 0, 1), 40);
}

TEST(ListSchedule, PutsCopiesIntoQueues) {
  // Branches of 40 on two devices. In parallel: 10; 1 and 2 to 90 here, 3 from 20 to 60 there, its
  // copy at 70; 4 to 100. One copy at a time is the same, for only 3's two copies travel.
  for (bool queue : {false, true}) {
    const simulate::Problem problem = MakeProblem({10, 40, 40, 40, 10}, kFan, 2, queue);
    const Instance instance(problem);
    const TaskGraph graph(problem);
    EXPECT_EQ(Latency(problem, ListSchedule(instance, graph, ListMethod::kHeft)), 100);
    EXPECT_EQ(Latency(problem, ListSchedule(instance, graph, ListMethod::kPeft)), 100);
  }
}

TEST(LongestPaths, SpreadsBranches) {
  const simulate::Problem problem = MakeProblem({10, 40, 40, 40, 10}, kFan, 3);
  const TaskGraph graph(problem);
  const auto device = MapLongestPaths(graph, [](std::int64_t, std::int64_t) {});
  // Three branches on three devices: 10 + 10 + 40 + 10 + 10.
  EXPECT_EQ(LatencyOf(graph, graph.PriorityOrder(), device), 80);
}

TEST(Anneal, FindsTheBestOfASmallGraphWhateverTheTimer) {
  for (bool queue : {false, true}) {
    const simulate::Problem problem = MakeProblem({10, 40, 40, 40, 10}, kFan, 3, queue);
    const Instance instance(problem);
    const TaskGraph graph(problem);
    StageSequence start{{0, 1, 2, 3, 4}, {0, 0, 0, 0, 0}, std::vector<bool>(5)};
    EXPECT_EQ(LatencyOf(instance, graph, start), 140);
    const StageSequence best = Anneal(instance, graph, start, {20'000, 1, 0, 1},
                                      [](std::int64_t, std::int64_t) { return 0.0; });
    PartialSchedule placed(instance, Growth::Plain());
    ASSERT_TRUE(Append(best, &placed));
    // In a queue the copies go out at 10 and 20. The last branch ends at 70 where the join runs,
    // too: the copies of the others come there at 60 and 70.
    EXPECT_EQ(Latency(problem, placed.Schedule()), 80);
    EXPECT_EQ(placed.latency().count, 80);
  }
}

TEST(Anneal, TimesWhatFollowsAMoveLikeTheWhole) {
  const simulate::Problem problem = MakeProblem({10, 40, 35, 30, 10}, kFan, 2);
  const Instance instance(problem);
  const TaskGraph graph(problem);
  const std::unique_ptr<SequenceTimer> timer = MakeTimer(instance, graph);
  StageSequence sequence{{0, 1, 2, 3, 4}, {0, 0, 0, 0, 0}, std::vector<bool>(5)};
  EXPECT_EQ(timer->TimeAll(sequence), 125);
  sequence.device[3] = 1;  // 20 to 50 there, its copy at 60; 4 waits for 2 until 85
  EXPECT_EQ(timer->Time(sequence, 3, 3, kFar), 95);
  sequence.device[3] = 0;
  sequence.device[4] = 1;  // the move before was not kept: 115, a copy, 10
  EXPECT_EQ(timer->Time(sequence, 4, 4, kFar), 135);
  EXPECT_EQ(timer->Time(sequence, 4, 4, 130), kFar);
  sequence.device[4] = 0;
  EXPECT_EQ(timer->Time(sequence, 4, 4, kFar), 125);
}

/// Operators with a parameter each, one of them read twice, on two devices behind one bus and
/// a third behind a faster one; copies go up one bus and down the other.
simulate::Problem WithLoads(std::size_t operators, std::mt19937_64* random) {
  constexpr std::size_t kDevices = 3;
  const auto below = [&](std::size_t limit) {
    return static_cast<std::int32_t>((*random)() % limit);
  };
  simulate::Problem problem;
  for (std::size_t o = 0; o < operators;
       ++o) {  // tensor o is its output, operators + o its parameter
    const auto op = static_cast<std::int32_t>(o), count = static_cast<std::int32_t>(operators);
    problem.inputs.value.push_back(count + (o % 4 == 3 ? op - 1 : op));
    if (o > 0) problem.inputs.value.push_back(below(o));
    problem.inputs.EndRow();
    problem.outputs.value.push_back(op);
    problem.outputs.EndRow();
  }
  for (std::size_t t = 0; t < 2 * operators; ++t) {
    const auto producer = t < operators ? static_cast<OperatorId>(t) : kNone;
    problem.tensors.push_back({Bytes{1}, producer, t >= operators});
  }
  problem.devices.assign(kDevices, {Bytes{1 << 20}, false});
  problem.operator_time = {operators, kDevices, Nanoseconds{}};
  problem.direct_time = {operators, kDevices, simulate::kNever};
  problem.host_read_time = {operators, kDevices, Nanoseconds{}};
  for (Nanoseconds& time : problem.operator_time.value) time = Nanoseconds{5 + below(30)};
  // Routes: loads over the slow and the fast bus, copies between the three devices.
  const std::vector<std::vector<ChannelId>> channels = {{0}, {1}, {2, 0}, {2, 1}, {3, 0}};
  for (const auto& row : channels) {
    problem.route_channels.value.insert(problem.route_channels.value.end(), row.begin(), row.end());
    problem.route_channels.EndRow();
  }
  problem.channels = 4;
  problem.route = {kDevices + 1, kDevices + 1, kNone};
  const std::int32_t routes[4][4] = {
      {kNone, 0, 0, 1}, {kNone, kNone, 2, 3}, {kNone, 2, kNone, 3}, {kNone, 4, 4, kNone}};
  for (std::size_t a = 0; a < 4; ++a) {
    for (std::size_t b = 0; b < 4; ++b) problem.route(a, b) = routes[a][b];
  }
  problem.route_speed = {0, 1, 0, 0, 0};
  problem.transfer_time = {2, 2 * operators, Nanoseconds{}};
  for (std::size_t t = 0; t < 2 * operators; ++t) {
    problem.transfer_time(0, t) = Nanoseconds{20 + below(40)};
    problem.transfer_time(1, t) = Nanoseconds{10 + below(20)};
  }
  return problem;
}

TEST(Anneal, KnowsFromTheLoadsThatAreLeftWhetherItEndsInTime) {
  constexpr std::size_t kOperators = 14;
  std::mt19937_64 random(3);
  int refused_at_once = 0;
  for (int graph_number = 0; graph_number < 20; ++graph_number) {
    const simulate::Problem problem = WithLoads(kOperators, &random);
    const Instance instance(problem);
    const TaskGraph graph(problem);
    const std::unique_ptr<SequenceTimer> timer = MakeTimer(instance, graph);
    StageSequence sequence{graph.PriorityOrder(), std::vector<DeviceId>(kOperators),
                           std::vector<bool>(kOperators)};
    for (int i = 0; i < 30; ++i) {
      sequence.device[random() % kOperators] = static_cast<DeviceId>(random() % 3);
      const std::int64_t latency = timer->TimeAll(sequence);
      for (const std::int64_t limit :
           {latency / 2, latency - 20, latency - 1, latency, 2 * latency}) {
        const std::int64_t before = timer->work();
        EXPECT_EQ(timer->Time(sequence, 0, kOperators - 1, limit),
                  latency <= limit ? latency : kFar);
        if (timer->work() - before == kOperators / 8) ++refused_at_once;  // none was placed
      }
    }
  }
  EXPECT_GT(refused_at_once, 100);  // by the loads alone, of 600 with half of the latency
}

TEST(Anneal, KnowsFromWhatFollowsAMoveWhetherItEndsInTime) {
  const simulate::Problem problem =
      MakeProblem({10, 40, 35, 30, 10, 20, 25, 15},
                  {{0, 1}, {0, 2}, {0, 3}, {1, 4}, {2, 5}, {3, 5}, {4, 6}, {5, 7}, {1, 7}}, 3);
  const Instance instance(problem);
  const TaskGraph graph(problem);
  const std::unique_ptr<SequenceTimer> timer = MakeTimer(instance, graph);
  StageSequence sequence{{0, 1, 2, 3, 4, 5, 6, 7}, std::vector<DeviceId>(8), std::vector<bool>(8)};
  std::int64_t kept = timer->TimeAll(sequence);
  for (std::size_t i = 0; i < 300; ++i) {
    const OperatorId op = static_cast<OperatorId>(i * 5 % 8);
    const DeviceId old = sequence.device[op];
    sequence.device[op] = static_cast<DeviceId>(i * 7 % 11 % 3);
    const std::int64_t whole = LatencyOf(instance, graph, sequence);
    const auto limit = kept + static_cast<std::int64_t>(i % 30);
    const std::int64_t found =
        timer->Time(sequence, static_cast<std::size_t>(op), static_cast<std::size_t>(op), limit);
    EXPECT_EQ(found, whole <= limit ? whole : kFar);
    if (found == kFar) {
      sequence.device[op] = old;
    } else {
      timer->Keep();
      kept = found;
    }
  }
}

TEST(Anneal, PutsAllOfARefusedMoveBack) {
  // Four operators, twelve in any order that read one of them each, and four that read these.
  std::vector<int> times;
  std::vector<std::pair<int, int>> edges;
  for (int i = 0; i < 20; ++i) times.push_back(10 + i * 7 % 31);
  for (int i = 4; i < 16; ++i) {
    edges.emplace_back(i % 4, i);
    edges.emplace_back(i, 16 + i / 4 % 4);
  }
  const auto problem = MakeProblem({times.begin(), times.end()}, edges, 3);
  const Instance instance(problem);
  const TaskGraph graph(problem);
  const std::unique_ptr<SequenceTimer> timer = MakeTimer(instance, graph);
  StageSequence sequence{std::vector<OperatorId>(20), std::vector<DeviceId>(20),
                         std::vector<bool>(20)};
  for (int i = 0; i < 20; ++i) sequence.order[i] = i;
  std::mt19937 random(1);
  std::int64_t kept = timer->TimeAll(sequence);
  for (int i = 0; i < 5000; ++i) {
    const std::size_t from = 4 + random() % 12, to = 4 + random() % 12;
    const StageSequence old = sequence;
    const auto order = sequence.order.begin();
    if (from < to) {
      std::rotate(order + from, order + from + 1, order + to + 1);
    } else {
      std::rotate(order + to, order + from, order + from + 1);
    }
    sequence.device[sequence.order[to]] = static_cast<DeviceId>(random() % 3);
    const std::int64_t whole = LatencyOf(instance, graph, sequence);
    // Far below what is kept, timing ends before the last of the positions that the move permuted.
    const std::int64_t limit = random() % 2 ? kept + random() % 10 : random() % kept;
    const std::int64_t found = timer->Time(sequence, std::min(from, to), std::max(from, to), limit);
    ASSERT_EQ(found, whole <= limit ? whole : kFar) << i;
    if (found == kFar) {
      sequence = old;
    } else {
      timer->Keep();
      kept = found;
    }
  }
}

TEST(AllocateStreams, GivesEachBranchItsOwn) {
  const simulate::Problem problem = MakeProblem({1, 1, 1, 1, 1}, kFan, 1);
  const TaskGraph graph(problem);
  for (auto method :
       {Allocation::kOpara, Allocation::kNimble, Allocation::kWavefront, Allocation::kFewest}) {
    Launches launches{{0, 1, 2, 3, 4}, std::vector<DeviceId>(5), std::vector<std::int32_t>(5)};
    AllocateStreams(graph, method, &launches);
    EXPECT_EQ(launches.stream, (std::vector<std::int32_t>{0, 0, 1, 2, 0}));
    EXPECT_EQ(CountSynchronizations(graph, launches), 4);
  }
}

TEST(AllocateStreams, NimbleAndFewestGoOnWithAnyThatFollows) {
  // Two modules of two branches each: 0 -> {1, 2} -> 3 -> {4, 5} -> 6. Three chains of edges, since
  // none leads from one module's second branch into the next module; Nimble's second matching joins
  // the second branches.
  const simulate::Problem problem = MakeProblem(
      {1, 1, 1, 1, 1, 1, 1}, {{0, 1}, {0, 2}, {1, 3}, {2, 3}, {3, 4}, {3, 5}, {4, 6}, {5, 6}}, 1);
  const TaskGraph graph(problem);
  const auto count = [&](Allocation method) {
    Launches launches{
        {0, 1, 2, 3, 4, 5, 6}, std::vector<DeviceId>(7), std::vector<std::int32_t>(7)};
    AllocateStreams(graph, method, &launches);
    return std::ranges::max(launches.stream) + 1;
  };
  EXPECT_EQ(count(Allocation::kOpara), 3);
  EXPECT_EQ(count(Allocation::kNimble), 2);
  EXPECT_EQ(count(Allocation::kFewest), 2);
}

}  // namespace
}  // namespace tvm_sched::search
