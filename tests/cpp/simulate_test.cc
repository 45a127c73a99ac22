// The simulator's core on one small machine: times, memory and each way to break the rules.
#include "simulate/simulate.h"

#include <gtest/gtest.h>

#include <vector>

#include "simulate/device_memory.h"

namespace tvm_sched::simulate {
namespace {

constexpr int kLoadRoute = 0, kPeerRoute = 1;  // also their channels: the bus downwards, the link

/// Operator 0 reads parameter 0 (100 bytes) and makes tensor 1 (50 bytes); operator 1 reads
/// that and makes tensor 2 (10 bytes), the output. Devices 0 and 1 are on one bus, a link leads
/// from 0 to 1; both at a byte a nanosecond. Kernels take 50 ns, operator 0 with direct host access
/// 130 ns.
Problem SmallProblem() {
  Problem problem;
  problem.inputs.value = {0, 1};
  problem.inputs.offset = {0, 1, 2};
  problem.outputs.value = {1, 2};
  problem.outputs.offset = {0, 1, 2};
  problem.tensors = {{Bytes{100}, kNone, true}, {Bytes{50}, 0, false}, {Bytes{10}, 1, true}};
  problem.devices = {{Bytes{200}, false}, {Bytes{200}, false}};
  problem.operator_time = {2, 2, Nanoseconds{50}};
  problem.direct_time = {2, 2, kNever};
  problem.direct_time(0, 0) = problem.direct_time(0, 1) = Nanoseconds{130};
  problem.host_read_time = {2, 2, Nanoseconds{}};
  problem.host_read_time(0, 0) = problem.host_read_time(0, 1) = Nanoseconds{100};
  problem.route = {3, 3, kNone};
  problem.route(0, 1) = problem.route(0, 2) = kLoadRoute;
  problem.route(1, 2) = kPeerRoute;
  problem.route_channels.value = {0, 1};
  problem.route_channels.offset = {0, 1, 2};
  problem.route_speed = {0, 0};
  problem.transfer_time = {1, 3, Nanoseconds{}};
  for (int t = 0; t < 3; ++t) problem.transfer_time(0, t).count = problem.tensors[t].size.count;
  problem.channels = 2;
  return problem;
}

Transfer Load(TensorId tensor, DeviceId device) {
  return {TransferKind::kLoad, tensor, kHost, device};
}
Transfer Copy(TensorId tensor, DeviceId source, DeviceId device) {
  return {TransferKind::kCopy, tensor, source, device};
}
Transfer HostRead(OperatorId op, DeviceId device) {
  return {TransferKind::kHostRead, op, kHost, device};
}

std::vector<std::int64_t> Counts(const std::vector<Nanoseconds>& times) {
  std::vector<std::int64_t> counts;
  for (Nanoseconds time : times) counts.push_back(time.count);
  return counts;
}

std::vector<Rule> Rules(const Schedule& schedule) {
  std::vector<Rule> rules;
  for (const Violation& v : Simulate(SmallProblem(), schedule, 100).violations)
    rules.push_back(v.rule);
  return rules;
}

TEST(Simulate, ResidentParametersAreThereFromTheStartUnlessTheyAreEvicted) {
  Problem problem = SmallProblem();
  problem.tensors[0].resident = true;
  Schedule schedule{{{0, 0}, {1, 1}}, {Load(0, 0), Copy(1, 0, 1)}};
  EXPECT_EQ(SimulateOrThrow(problem, schedule).times.latency, Nanoseconds{150});
  schedule.transfers[0].evict = true;
  EXPECT_EQ(SimulateOrThrow(problem, schedule).times.latency, Nanoseconds{250});
}

TEST(Simulate, ADirectReadOfAResidentParameterUsesTheBus) {
  Problem problem = SmallProblem();
  problem.tensors[0].resident = true;
  const Schedule schedule{{{0, 0, true}, {1, 1}}, {HostRead(0, 0), Copy(1, 0, 1)}};
  EXPECT_EQ(SimulateOrThrow(problem, schedule).times.latency, Nanoseconds{230});
}

TEST(Simulate, LoadsRunsAndCopies) {
  const Schedule schedule{{{0, 0}, {1, 1}}, {Load(0, 0), Copy(1, 0, 1)}};
  const Times times = SimulateOrThrow(SmallProblem(), schedule).times;
  EXPECT_EQ(Counts(times.start), (std::vector<std::int64_t>{100, 200, 0, 150}));
  EXPECT_EQ(Counts(times.end), (std::vector<std::int64_t>{150, 250, 100, 200}));
  EXPECT_EQ(times.latency, Nanoseconds{250});
}

TEST(Simulate, DirectReadKeepsTheBusForItsBytesOnly) {
  const Schedule schedule{{{0, 0, true}, {1, 0}}, {HostRead(0, 0), Load(0, 1)}};
  const Times times = SimulateOrThrow(SmallProblem(), schedule).times;
  EXPECT_EQ(Counts(times.start), (std::vector<std::int64_t>{0, 130, 0, 100}));
  EXPECT_EQ(Counts(times.end), (std::vector<std::int64_t>{130, 180, 100, 200}));
}

TEST(Simulate, DirectReadWaitsForTheBus) {
  const Schedule schedule{{{0, 0, true}, {1, 0}}, {Load(0, 1), HostRead(0, 0)}};
  EXPECT_EQ(SimulateOrThrow(SmallProblem(), schedule).times.start[0], Nanoseconds{100});
}

TEST(Simulate, TransfersMayBeListedBeforeWhatTheyWaitFor) {
  const Schedule schedule{{{1, 1}, {0, 0}}, {Copy(1, 0, 1), Load(0, 0)}};
  EXPECT_EQ(SimulateOrThrow(SmallProblem(), schedule).times.latency, Nanoseconds{250});
}

TEST(Simulate, ALongChainDoesNotOverflowTheStack) {
  constexpr int kLength = 200000;
  Problem problem = SmallProblem();
  problem.inputs = problem.outputs = {};
  problem.tensors.clear();
  Schedule schedule;
  for (int o = 0; o < kLength; ++o) {
    if (o > 0) problem.inputs.value.push_back(o - 1);
    problem.inputs.EndRow();
    problem.outputs.value.push_back(o);
    problem.outputs.EndRow();
    problem.tensors.push_back({Bytes{1}, o, false});
  }
  problem.operator_time = {kLength, 2, Nanoseconds{1}};
  problem.transfer_time = {1, kLength, Nanoseconds{1}};
  // The last operator is asked for first, and waits for all the others.
  schedule.placements.push_back({kLength - 1, 1});
  for (int o = 0; o < kLength - 1; ++o) schedule.placements.push_back({o, 0});
  schedule.transfers = {Copy(kLength - 2, 0, 1)};
  EXPECT_EQ(SimulateOrThrow(problem, schedule).times.latency, Nanoseconds{kLength + 1});
}

TEST(Rules, EachIsFound) {
  EXPECT_EQ(Rules({{{0, 0}}, {Load(0, 0)}}), std::vector{Rule::kOperatorMissing});
  EXPECT_EQ(Rules({{{0, 0}, {1, 0}, {1, 1}}, {Load(0, 0), Copy(1, 0, 1)}}),
            std::vector{Rule::kOperatorTwice});
  EXPECT_EQ(Rules({{{0, 0}, {1, 0, true}}, {Load(0, 0), HostRead(1, 0)}}),
            std::vector{Rule::kOperatorForbidden});
  EXPECT_EQ(Rules({{{0, 0}, {1, 1}}, {Load(0, 0), Load(1, 1)}}),
            (std::vector{Rule::kLoadActivation, Rule::kTensorMissing}));
  EXPECT_EQ(Rules({{{0, 0}, {1, 0}}, {Load(0, 0), Copy(1, 0, 0)}}), std::vector{Rule::kCopySelf});
  EXPECT_EQ(Rules({{{0, 1}, {1, 0}}, {Load(0, 1), Copy(1, 1, 0)}}),
            (std::vector{Rule::kCopyRoute, Rule::kTensorMissing}));
  EXPECT_EQ(Rules({{{0, 1}, {1, 1}}, {Copy(0, 0, 1)}}), std::vector{Rule::kCopySource});
  EXPECT_EQ(Rules({{{0, 0}, {1, 0}}, {Load(0, 0), Load(0, 0)}}), std::vector{Rule::kTensorTwice});
  EXPECT_EQ(Rules({{{0, 0}, {1, 0}}, {}}), std::vector{Rule::kTensorMissing});
  EXPECT_EQ(Rules({{{0, 0, true}, {1, 0}}, {}}), std::vector{Rule::kHostReadMissing});
  EXPECT_EQ(Rules({{{0, 0, true}, {1, 0}}, {HostRead(0, 0), HostRead(0, 0)}}),
            std::vector{Rule::kHostReadTwice});
  EXPECT_EQ(Rules({{{0, 0, true}, {1, 0}}, {HostRead(0, 1)}}),
            (std::vector{Rule::kHostReadDevice, Rule::kHostReadMissing}));
  EXPECT_EQ(Rules({{{0, 0}, {1, 0}}, {Load(0, 0), HostRead(0, 0)}}),
            std::vector{Rule::kHostReadSpurious});
}

TEST(Rules, ADeadlockNamesItsCycle) {
  // Operator 1 stands first on the device of operator 0, which it waits for.
  const Simulation result = Simulate(SmallProblem(), {{{1, 0}, {0, 0}}, {Load(0, 0)}}, 100);
  ASSERT_EQ(result.violations.size(), 1U);
  EXPECT_EQ(result.violations[0].rule, Rule::kDeadlock);
  EXPECT_EQ(result.violations[0].cycle, (std::vector<EventId>{1, 0}));
  EXPECT_THROW(SimulateOrThrow(SmallProblem(), {{{1, 0}, {0, 0}}, {Load(0, 0)}}), BrokenRule);
}

TEST(Rules, IndicesOutOfRangeThrow) {
  EXPECT_THROW(Simulate(SmallProblem(), {{{2, 0}}, {}}, 1), std::out_of_range);
  EXPECT_THROW(Simulate(SmallProblem(), {{{0, 2}}, {}}, 1), std::out_of_range);
  EXPECT_THROW(Simulate(SmallProblem(), {{{0, 0}}, {Load(3, 0)}}, 1), std::out_of_range);
  EXPECT_THROW(Simulate(SmallProblem(), {{{0, 0}}, {Copy(0, kHost, 0)}}, 1), std::out_of_range);
  EXPECT_THROW(Simulate(SmallProblem(), {{{0, 0}}, {{static_cast<TransferKind>(7), 0, 0, 0}}}, 1),
               std::out_of_range);
}

TEST(Memory, FreesBeforeItTakes) {
  const Problem problem = SmallProblem();
  const Schedule schedule{{{0, 0}, {1, 1}}, {Load(0, 0), Copy(1, 0, 1)}};
  const auto holdings = FindHoldings(problem, schedule, SimulateOrThrow(problem, schedule));
  const auto profile = MemoryProfile(problem, holdings);
  // The parameter from 0 on, tensor 1 from 100 until its copy has left at 200.
  ASSERT_EQ(profile[0].size(), 3U);
  EXPECT_EQ(profile[0][1].held, Bytes{150});
  EXPECT_EQ(profile[0][2].time, Nanoseconds{200});
  EXPECT_EQ(profile[0][2].held, Bytes{100});
  EXPECT_EQ(PeakMemory(problem, holdings), (std::vector{Bytes{150}, Bytes{60}}));
}

TEST(Units, SumsThatOverflowThrow) {
  EXPECT_THROW(kNever + Nanoseconds{1}, std::overflow_error);
  EXPECT_EQ(Bytes{2} + Bytes{3}, Bytes{5});
}

}  // namespace
}  // namespace tvm_sched::simulate
