// The plan reader: a good plan, and each rule broken once.
#include <gtest/gtest.h>

#include <string>

#include "runtime/plan_reader.h"

namespace tvm_sched::runtime {
namespace {

const char* const kGood = R"({
  "format": "tvm_sched.plan", "version": 1, "name": "p", "backend": "cpu",
  "devices": [{"name": "d0", "arena_bytes": 192}, {"name": "d1", "arena_bytes": 64}],
  "queues": [{"name": "q0"}, {"name": "bus"}],
  "arguments": [{"name": "x", "shape": [4], "dtype": "float32"}],
  "parameters": [{"name": "w", "shape": [4], "dtype": "float32"}],
  "buffers": [
    {"name": "x", "shape": [4], "dtype": "float32", "source": {"kind": "argument", "index": 0}},
    {"name": "w", "shape": [4], "dtype": "float32", "source": {"kind": "parameter", "index": 0}},
    {"name": "y", "shape": [4], "dtype": "float32", "source": {"kind": "arena", "device": 0, "offset": 128}},
    {"name": "o", "shape": [4], "dtype": "float32", "source": {"kind": "output", "index": 0}},
    {"name": "i", "shape": [4], "dtype": "int64", "source": {"kind": "arena", "device": 1, "offset": 0}}],
  "outputs": [{"shape": [4], "dtype": "float32"}],
  "steps": [
    {"queue": 0, "kind": "kernel", "name": "add", "function": "fused_add", "calling": "dps",
     "inputs": [0, 1], "outputs": [2], "waits": [], "duration_ns": 1500,
     "event": {"kind": "kernel", "name": "add", "lanes": ["d0"], "bytes": 0}},
    {"queue": 1, "kind": "host_read", "name": "w", "inputs": [], "outputs": [], "waits": [], "duration_ns": 7},
    {"queue": 1, "kind": "copy", "name": "y", "inputs": [2], "outputs": [3], "waits": [0], "duration_ns": 20}]
})";

/// The good plan with one piece of its text replaced.
std::string With(const std::string& from, const std::string& to) {
  std::string text = kGood;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

void ExpectError(const std::string& json, const std::string& message) {
  try {
    ReadPlans(json);
    FAIL() << "accepted, but should say: " << message;
  } catch (const FormatError& error) {
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos)
        << "says: " << error.what() << "\nbut should: " << message;
  }
}

TEST(PlanReader, ReadsEverything) {
  const Plan plan = ReadPlans(kGood).at(0);
  EXPECT_EQ(plan.name, "p");
  EXPECT_EQ(plan.backend, BackendKind::kCpu);
  EXPECT_EQ(plan.devices[0].arena.count, 192);
  EXPECT_EQ(plan.queues, (std::vector<std::string>{"q0", "bus"}));
  EXPECT_EQ(plan.arguments[0].ToString(), "float32[4]");
  EXPECT_EQ(plan.buffers[2].source.offset.count, 128);
  EXPECT_EQ(plan.buffers[3].source.kind, SourceKind::kOutput);
  EXPECT_EQ(plan.steps[0].function, "fused_add");
  EXPECT_EQ(plan.steps[0].duration, Nanoseconds(1500));
  EXPECT_NE(plan.steps[0].event_json.find("\"lanes\":[\"d0\"]"), std::string::npos);
  EXPECT_EQ(plan.steps[1].kind, StepKind::kHostRead);
  EXPECT_EQ(plan.steps[2].waits, std::vector<int>{0});
  EXPECT_EQ(plan.CriticalLength(), Nanoseconds(1520));
  EXPECT_EQ(plan.DescribeStep(0), "operator \"add\" (step 0, queue \"q0\", device \"d0\")");
}

TEST(PlanReader, ReadsSeveralPlans) {
  std::string other = With("\"name\": \"p\"", "\"name\": \"q\"");
  for (std::size_t at; (at = other.find("[4], \"dtype\": \"float32\"")) != std::string::npos;) {
    other.replace(at, 3, "[2]");
  }
  ExpectError("[" + std::string(kGood) + "," + other + "]",
              "parameter \"w\" is float32[4] in plan");
  other.replace(other.find("\"name\": \"w\""), 11, "\"name\": \"v\"");
  EXPECT_EQ(ReadPlans("[" + std::string(kGood) + "," + other + "]").size(), 2U);
}

TEST(PlanReader, PlansMustDiffer) {
  ExpectError("[" + std::string(kGood) + "," + kGood + "]", "two plans have the name \"p\"");
  ExpectError("[" + std::string(kGood) + "," + With("\"name\": \"p\"", "\"name\": \"q\"") + "]",
              "take arguments of the same shapes and dtypes");
  ExpectError("[]", "at least one plan");
}

TEST(PlanReader, Envelope) {
  ExpectError("{", "$: not a JSON document");
  ExpectError("3", "$: found 3, expected a list");
  ExpectError(With("tvm_sched.plan", "x"), "$.format: found \"x\", expected \"tvm_sched.plan\"");
  ExpectError(With("\"version\": 1", "\"version\": 2"), "$.version: found 2, expected at most 1");
  ExpectError(With("\"version\": 1", "\"version\": \"1\""), "$.version: found \"1\"");
  ExpectError(With("\"backend\": \"cpu\"", "\"backend\": \"tpu\""),
              "$.backend: found \"tpu\", expected one of \"cpu\", \"emulated\"");
  ExpectError(With("\"name\": \"p\",", ""), "$: field \"name\" is missing");
  ExpectError(With("\"name\": \"p\",", "\"name\": \"\","), "$.name: found \"\"");
  ExpectError(With("\"name\": \"p\",", "\"name\": \"p\", \"nme\": 1,"), "$: unknown field \"nme\"");
}

TEST(PlanReader, DevicesAndQueues) {
  ExpectError(With("\"arena_bytes\": 64", "\"arena_bytes\": -64"),
              "$.devices[1].arena_bytes: found -64, expected an integer of at least 0");
  ExpectError(With("\"name\": \"d1\"", "\"name\": \"d0\""), "$.devices[1].name: the name \"d0\"");
  ExpectError(With("{\"name\": \"bus\"}", "{\"name\": \"q0\"}"), "$.queues[1].name");
  ExpectError(With("{\"name\": \"bus\"}", "\"bus\""),
              "$.queues[1]: found \"bus\", expected an object");
}

TEST(PlanReader, Tensors) {
  ExpectError(With("\"shape\": [4]", "\"shape\": [4.5]"), "$.arguments[0].shape[0]: found 4.5");
  ExpectError(With("\"shape\": [4]", "\"shape\": 4"), "$.arguments[0].shape: found 4");
  ExpectError(With("\"shape\": [4]", "\"shape\": [1000000000, 1000000000]"),
              "more than 2^50 elements");
  ExpectError(With("\"dtype\": \"float32\"", "\"dtype\": \"floot\""),
              "$.arguments[0].dtype: found \"floot\"");
}

TEST(PlanReader, Buffers) {
  ExpectError(With("\"kind\": \"argument\"", "\"kind\": \"argumen\""), "$.buffers[0].source.kind");
  ExpectError(With("\"kind\": \"argument\", \"index\": 0", "\"kind\": \"argument\", \"index\": 1"),
              "$.buffers[0].source.index: found 1, expected an index into arguments, 0 to 0");
  ExpectError(With("\"offset\": 128", "\"offset\": 192"), "end beyond the arena of device \"d0\"");
  ExpectError(With("\"offset\": 128", "\"offset\": 100"),
              "$.buffers[2].source.offset: found 100, expected a multiple of 64");
  ExpectError(With("\"device\": 0", "\"device\": 2"), "$.buffers[2].source.device: found 2");
  ExpectError(With("\"outputs\": [{\"shape\": [4]", "\"outputs\": [{\"shape\": [5]"),
              "$.buffers[3].source: the buffer is float32[4], but outputs[0] is float32[5]");
}

TEST(PlanReader, Steps) {
  ExpectError(With("\"queue\": 1", "\"queue\": 2"), "$.steps[1].queue: found 2");
  ExpectError(With("\"kind\": \"copy\"", "\"kind\": \"move\""), "$.steps[2].kind: found \"move\"");
  ExpectError(With("\"function\": \"fused_add\", ", ""),
              "$.steps[0]: field \"function\" is missing");
  ExpectError(With("\"dps\"", "\"c\""), "$.steps[0].calling: found \"c\"");
  ExpectError(With("\"inputs\": [0, 1]", "\"inputs\": [0, 9]"), "$.steps[0].inputs[1]: found 9");
  ExpectError(
      With("\"waits\": [0]", "\"waits\": [2]"),
      "$.steps[2].waits[0]: found 2, expected an index into the steps before this one, 0 to 1");
  ExpectError(With("\"waits\": []", "\"waits\": [0]"), "$.steps[0].waits[0]");
  ExpectError(With("\"duration_ns\": 20", "\"duration_ns\": 2.5"),
              "$.steps[2].duration_ns: found 2.5");
  ExpectError(With("\"duration_ns\": 20", "\"duration_ns\": -1"),
              "$.steps[2].duration_ns: found -1");
  ExpectError(With("\"inputs\": [2], \"outputs\": [3]", "\"inputs\": [2, 2], \"outputs\": [3]"),
              "$.steps[2]: a copy has one input and one output, found 2 and 1");
  ExpectError(With("\"inputs\": [2], \"outputs\": [3]", "\"inputs\": [4], \"outputs\": [3]"),
              "a copy's buffers must agree, found int64[4] and float32[4]");
  ExpectError(
      With("\"outputs\": [2]", "\"outputs\": [1]"),
      "$.steps[0].outputs[0]: found 1, expected a buffer in an arena, an output or a next state");
}

TEST(PlanReader, States) {
  const std::string states = R"("states": [{"name": "s", "shape": [4], "dtype": "float32",
                                 "device": 1}], "steps")";
  ExpectError(With("\"steps\"", states), "$.states[0]: no step writes it");
  std::string two = states;
  two.replace(two.find("\"device\": 1"), 11, "\"device\": 2");
  ExpectError(With("\"steps\"", two), "$.states[0].device: found 2");
  ExpectError(With("\"kind\": \"argument\"", "\"kind\": \"state\""),
              "$.buffers[0].source.index: found 0, expected nothing: the list of states is empty");
}

TEST(PlanReader, MemoryBesideTheArena) {
  ExpectError(With("\"arena_bytes\": 64",
                   "\"arena_bytes\": 64, \"extra_bytes\": 37, \"memory_bytes\": 100"),
              "has 100 bytes, but the plan needs 64 and 37 for states and libraries there");
}

TEST(PlanReader, EachOutputIsWrittenOnce) {
  ExpectError(With("\"outputs\": [3]", "\"outputs\": [2]"), "$.outputs[0]: no step writes it");
  ExpectError(With("\"outputs\": [2]", "\"outputs\": [3]"),
              "$.outputs[0]: is written by operator \"add\"");
}

}  // namespace
}  // namespace tvm_sched::runtime
