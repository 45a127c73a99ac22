// Plan templates: sizes as expressions, and the plans that a template gives.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "runtime/plan_reader.h"
#include "runtime/plan_template.h"
#include "runtime/residency.h"

namespace tvm_sched::runtime {
namespace {

SizeExpression Expression(const std::string& json) {
  return {JsonCursor::Parse(json, "$"), {"n", "m"}};
}

TEST(SizeExpression, IsExact) {
  const std::vector<std::pair<std::string, std::int64_t>> cases = {
      {"7", 7},
      {"\"m\"", -7},
      {R"(["+", "n", ["*", 2, "m"]])", -11},
      {R"(["-", "n", "m"])", 10},
      {R"(["//", "m", 2])", -4},
      {R"(["//", 7, -2])", -4},
      {R"(["//", "m", -2])", 3},
      {R"(["//", -8, 2])", -4},
      {R"(["%", "m", 2])", 1},
      {R"(["%", 7, -2])", -1},
      {R"(["%", "m", -1])", 0},
      {R"(["min", "n", "m"])", -7},
      {R"(["max", "n", "m"])", 3},
  };
  for (const auto& [json, value] : cases) {
    EXPECT_EQ(Expression(json).Evaluate({3, -7}), value) << json;
  }
  EXPECT_EQ(Expression("\"m\"").symbol(), 1);
  EXPECT_EQ(Expression(R"(["+", "m", 0])").symbol(), -1);
}

TEST(SizeExpression, RefusesWhatHasNoValue) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (const char* json : {R"(["+", "n", 1])", R"(["*", "n", 2])", R"(["//", "m", -1])",
                           R"(["-", "m", 1])", R"(["//", "n", 0])", R"(["%", "n", 0])"}) {
    EXPECT_THROW(Expression(json).Evaluate({kMost, -kMost - 1}), SizeError) << json;
  }
  for (const char* json : {"\"k\"", "1.5", "[]", R"(["+", "n"])", R"(["/", "n", 2])", "{}"}) {
    EXPECT_THROW(Expression(json), FormatError) << json;
  }
}

/// Two kernels on each of two queues: a -> b on the first; c, then d, which reads a, on the second.
std::string Template(const std::string& waits) {
  std::string text = R"({
  "format": "tvm_sched.plan", "version": 1, "name": "t", "backend": "cpu",
  "symbols": [{"name": "n", "low": 0, "high": 4611686018427387904}],
  "devices": [{"name": "d0", "memory_bytes": 4096}],
  "queues": [{"name": "q0", "device": 0}, {"name": "q1", "device": 0}],
  "arguments": [{"name": "x", "shape": ["n"], "dtype": "float32"}],
  "parameters": [], "outputs": [{"shape": [["*", "n", 2]], "dtype": "float32"}],
  "buffers": [
    {"name": "x", "shape": ["n"], "dtype": "float32", "source": {"kind": "argument", "index": 0}},
    {"name": "a", "shape": ["n"], "dtype": "float32", "source": {"kind": "arena", "device": 0}},
    {"name": "b", "shape": [["*", "n", 2]], "dtype": "float32", "source": {"kind": "arena", "device": 0}},
    {"name": "c", "shape": ["n"], "dtype": "float32", "source": {"kind": "arena", "device": 0}},
    {"name": "o", "shape": [["*", "n", 2]], "dtype": "float32", "source": {"kind": "output", "index": 0}}],
  "steps": [
    {"queue": 0, "kind": "kernel", "name": "a", "function": "f", "inputs": [0], "outputs": [1], "waits": [], "duration_ns": 1},
    {"queue": 0, "kind": "kernel", "name": "b", "function": "f", "inputs": [1], "outputs": [2], "waits": [], "duration_ns": 1,
     "sizes": ["n", 5]},
    {"queue": 1, "kind": "kernel", "name": "c", "function": "f", "inputs": [0], "outputs": [3], "waits": [WAITS], "duration_ns": 1},
    {"queue": 1, "kind": "kernel", "name": "o", "function": "f", "inputs": [2, 3], "outputs": [4], "waits": [1], "duration_ns": 1}]
})";
  return text.replace(text.find("WAITS"), 5, waits);
}

std::int64_t Offset(const Plan& plan, int buffer) {
  return plan.buffers[buffer].source.offset.count;
}

TEST(PlanTemplate, KernelsOfFewBytesUseOneThread) {
  std::string text = Template("1");
  text.replace(text.find("4096"), 4, "4096000");
  const Plan open = ReadPlans(text).at(0);
  EXPECT_EQ(Instantiate(open, {100})->steps[0].cores.Of(8), 1);
  EXPECT_EQ(Instantiate(open, {100000})->steps[0].cores.Of(8), 8);
}

TEST(PlanTemplate, GivesThePlanOfEachSize) {
  const Plan open = ReadPlans(Template("1")).at(0);
  const auto plan = Instantiate(open, {20});
  EXPECT_EQ(plan->open, nullptr);
  EXPECT_EQ(plan->name, "t[n=20]");
  EXPECT_EQ(plan->arguments[0].ToString(), "float32[20]");
  EXPECT_EQ(plan->outputs[0].ToString(), "float32[40]");
  EXPECT_EQ(plan->steps[1].sizes, (std::vector<std::int64_t>{20, 5}));
  // a's 80 bytes, then b's; c waits for a's last reader, and so has its place.
  EXPECT_EQ(Offset(*plan, 1), 0);
  EXPECT_EQ(Offset(*plan, 2), 128);
  EXPECT_EQ(Offset(*plan, 3), 0);
  EXPECT_EQ(plan->devices[0].arena.count, 128 + 160);
  EXPECT_EQ(Instantiate(open, {0})->devices[0].arena.count, 0);
}

TEST(PlanTemplate, SharesNoBytesThatMayStillBeInUse) {
  const auto plan = Instantiate(ReadPlans(Template("0")).at(0), {20});
  EXPECT_EQ(Offset(*plan, 3), 128 + 192);  // b may still read a when c is written
}

TEST(PlanTemplate, RefusesSizesByName) {
  const Plan open = ReadPlans(Template("1")).at(0);
  const DLDataType type = open.arguments[0].dtype;
  EXPECT_EQ(BindSizes(open, {{"", {7}, type}}), (std::vector<std::int64_t>{7}));
  for (const std::vector<TensorSpec>& given : std::vector<std::vector<TensorSpec>>{
           {}, {{"", {7, 1}, type}}, {{"", {7}, {kDLInt, 32, 1}}}, {{"", {1LL << 62}, type}, {}}}) {
    EXPECT_THROW(BindSizes(open, given), SizeError);
  }
  EXPECT_THROW(Instantiate(open, {1000}), SizeError);       // more than the device has
  EXPECT_THROW(Instantiate(open, {1LL << 52}), SizeError);  // too many elements
  EXPECT_THROW(Instantiate(open, {1LL << 62}), SizeError);  // 2 n does not fit
}

TEST(PlanTemplate, KeepsParametersApartFromAllOthers) {
  std::string text = Template("1");
  const auto set = [&text](const std::string& from, const std::string& to) {
    text.replace(text.find(from), from.size(), to);
  };
  // c is a parameter that lies there from the run before, while a was computed and read.
  set(R"("parameters": [])", R"("parameters": [{"name": "w", "shape": [20], "dtype": "float32"}])");
  set(R"({"name": "o", "shape")",
      R"({"name": "w", "shape": [20], "dtype": "float32", "source": {"kind": "parameter", "index": 0}},
      {"name": "o", "shape")");
  set(R"("name": "c", "shape": ["n"])", R"("name": "c", "shape": [20])");
  set(R"("kind": "kernel", "name": "c", "function": "f", "inputs": [0])",
      R"("kind": "copy", "name": "c", "inputs": [4])");
  set(R"("outputs": [4], "waits": [1])", R"("outputs": [5], "waits": [1, 2])");
  const Plan open = ReadPlans(text).at(0);
  const std::vector<bool> skipped = StepsSkippedWhenWarm(open, 1.0);
  EXPECT_EQ(skipped, (std::vector<bool>{false, false, true, false}));
  const auto plan = Instantiate(open, {20});
  EXPECT_EQ(Offset(*plan, 3), 128 + 192);
  EXPECT_EQ(StepsSkippedWhenWarm(*plan, 1.0), skipped);
}

void ExpectRefused(const std::string& from, const std::string& to, const std::string& message) {
  std::string text = Template("1");
  try {
    ReadPlans(text.replace(text.find(from), from.size(), to));
    FAIL() << "accepted: " << to;
  } catch (const FormatError& error) {
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
  }
}

TEST(PlanTemplate, BreaksNoRule) {
  ExpectRefused(R"("shape": ["n"], "dtype": "float32", "source": {"kind": "argument")",
                R"("shape": [["*", "n", 2]], "dtype": "float32", "source": {"kind": "argument")",
                "buffers[0].source");
  ExpectRefused(R"([{"name": "n", "low")", R"([{"name": "k"}, {"name": "n", "low")",
                "no argument has this symbol");
  ExpectRefused(R"("backend": "cpu")", R"("backend": "emulated")", "backend \"cpu\"");
  ExpectRefused(R"({"name": "d0")", R"({"name": "d0", "arena_bytes": 64)", "no arena_bytes");
  ExpectRefused(R"("low": 0, "high": 4611686018427387904)", R"("low": 3, "high": 2)", "high");
  ExpectRefused(R"("device": 0}},)", R"("device": 0, "offset": 0}},)", "unknown field");
  ExpectRefused(R"("inputs": [0], "outputs": [1])", R"("inputs": [3], "outputs": [1])",
                "steps[0].inputs: buffer 3 (\"c\") is read before");
}

}  // namespace
}  // namespace tvm_sched::runtime
