#include "runtime/plan_reader.h"

#include <tvm/ffi/dtype.h>

#include <algorithm>
#include <set>
#include <utility>

#include "runtime/plan_template.h"

namespace tvm_sched::runtime {

namespace {

constexpr const char* kFormat = "tvm_sched.plan";
constexpr int kVersion = 1;

void CheckFormat(const JsonCursor& plan) {
  const JsonCursor format = plan.Field("format");
  if (format.String() != kFormat) format.Unexpected(std::string("\"") + kFormat + "\"");
  const JsonCursor version = plan.Field("version");
  if (version.Int(1, std::numeric_limits<std::int64_t>::max()) > kVersion) {
    version.Unexpected("at most " + std::to_string(kVersion) +
                       ": the plan was written by a newer tvm_sched than the one that reads it");
  }
}

void RejectTwice(std::set<std::string>& seen, const JsonCursor& name, const std::string& what) {
  if (!seen.insert(name.String()).second) {
    name.Fail("the name \"" + name.String() + "\" is there twice; names of " + what +
              " must differ");
  }
}

/// Neither the arena alone nor what is beside it may be more than the device has.
void CheckMemory(const JsonCursor& item, const Device& device) {
  const auto memory = item.OptionalField("memory_bytes");
  if (!memory) return;
  const Bytes limit{memory->NonNegative()};
  if (device.arena <= limit && device.extra.count <= limit.count - device.arena.count) return;
  const std::string beside =
      device.extra.count == 0
          ? ""
          : " and " + std::to_string(device.extra.count) + " for states and libraries";
  memory->Fail("device \"" + device.name + "\" has " + std::to_string(limit.count) +
               " bytes, but the plan needs " + std::to_string(device.arena.count) + beside +
               " there; use more devices, devices with more memory, or smaller inputs");
}

std::vector<Device> ReadDevices(const JsonCursor& cursor, bool open) {
  std::vector<Device> devices;
  std::set<std::string> seen;
  for (const JsonCursor& item : cursor.Items()) {
    item.AllowFields({"name", "arena_bytes", "extra_bytes", "workspace_bytes", "memory_bytes"});
    devices.push_back({item.Field("name").Name(), {}});
    Device& device = devices.back();
    if (!open) {
      device.arena = {item.Field("arena_bytes").NonNegative()};
    } else if (item.OptionalField("arena_bytes")) {
      item.Fail("a template has no arena_bytes: they depend on the sizes");
    }
    if (auto extra = item.OptionalField("extra_bytes"); extra)
      device.extra = {extra->NonNegative()};
    if (auto space = item.OptionalField("workspace_bytes"); space) {
      device.workspace = Bytes{space->NonNegative()};
    }
    CheckMemory(item, device);
    if (auto memory = item.OptionalField("memory_bytes")) device.memory = {memory->NonNegative()};
    RejectTwice(seen, item.Field("name"), "devices");
  }
  return devices;
}

/// The device that a queue names, or the one whose name it has.
int DeviceOfQueue(const JsonCursor& cursor, const std::string& name,
                  const std::vector<Device>& devices) {
  if (auto device = cursor.OptionalField("device"); device) {
    return device->Index(devices.size(), "devices");
  }
  for (std::size_t d = 0; d < devices.size(); ++d) {
    if (devices[d].name == name) return static_cast<int>(d);
  }
  return -1;
}

void ReadQueues(const JsonCursor& cursor, Plan* plan) {
  std::set<std::string> seen;
  for (const JsonCursor& item : cursor.Items()) {
    item.AllowFields({"name", "device"});
    plan->queues.push_back(item.Field("name").Name());
    RejectTwice(seen, item.Field("name"), "queues");
    plan->queue_devices.push_back(DeviceOfQueue(item, plan->queues.back(), plan->devices));
  }
}

std::vector<TensorSpec> ReadTensors(const JsonCursor& cursor, const std::string& unique,
                                    TemplateSizes* open = nullptr) {
  std::vector<TensorSpec> tensors;
  std::set<std::string> seen;
  for (const JsonCursor& item : cursor.Items()) {
    item.AllowFields({"name", "shape", "dtype"});
    tensors.push_back(ReadTensorSpec(item, open));
    if (!unique.empty()) {
      item.Field("name").Name();
      RejectTwice(seen, item.Field("name"), unique);
    }
  }
  return tensors;
}

Source ReadArenaSource(const JsonCursor& cursor, const Plan& plan, const TensorSpec& spec) {
  const int index = cursor.Field("device").Index(plan.devices.size(), "devices");
  if (plan.open) {
    cursor.AllowFields({"kind", "device"});
    return {SourceKind::kArena, index, {}};
  }
  cursor.AllowFields({"kind", "device", "offset"});
  Source source{SourceKind::kArena, index, {cursor.Field("offset").NonNegative()}};
  const Device& device = plan.devices[source.index];
  if (source.offset.count % static_cast<std::int64_t>(kAlignment) != 0) {
    cursor.Field("offset").Unexpected("a multiple of " + std::to_string(kAlignment));
  }
  if (source.offset > device.arena ||
      spec.size().count > device.arena.count - source.offset.count) {
    cursor.Fail("the buffer's " + std::to_string(spec.size().count) + " bytes at offset " +
                std::to_string(source.offset.count) + " end beyond the arena of device \"" +
                device.name + "\", which has " + std::to_string(device.arena.count) + " bytes");
  }
  return source;
}

Source ReadListSource(const JsonCursor& cursor, SourceKind kind, const std::string& list,
                      const std::vector<TensorSpec>& tensors, const TensorSpec& spec) {
  cursor.AllowFields({"kind", "index"});
  const int index = cursor.Field("index").Index(tensors.size(), list);
  if (!spec.SameType(tensors[index])) {
    cursor.Fail("the buffer is " + spec.ToString() + ", but " + list + "[" + std::to_string(index) +
                "] is " + tensors[index].ToString());
  }
  return {kind, index, {}};
}

std::vector<State> ReadStates(const JsonCursor& cursor, const Plan& plan) {
  std::vector<State> states;
  std::set<std::string> seen;
  for (const JsonCursor& item : cursor.Items()) {
    item.AllowFields({"name", "shape", "dtype", "device", "in_place"});
    item.Field("name").Name();
    states.push_back(
        {ReadTensorSpec(item), item.Field("device").Index(plan.devices.size(), "devices")});
    if (auto in_place = item.OptionalField("in_place")) states.back().in_place = in_place->Bool();
    RejectTwice(seen, item.Field("name"), "states");
  }
  return states;
}

std::vector<TensorSpec> SpecsOf(const std::vector<State>& states) {
  std::vector<TensorSpec> specs;
  for (const State& state : states) specs.push_back(state.spec);
  return specs;
}

Buffer ReadBuffer(const JsonCursor& cursor, const Plan& plan, TemplateSizes* open) {
  cursor.AllowFields({"name", "shape", "dtype", "source"});
  Buffer buffer{ReadTensorSpec(cursor, open), {}};
  const JsonCursor source = cursor.Field("source");
  switch (source.Field("kind").Word(
      {"arena", "argument", "parameter", "output", "state", "next_state"})) {
    case 0:
      buffer.source = ReadArenaSource(source, plan, buffer.spec);
      break;
    case 1:
      buffer.source =
          ReadListSource(source, SourceKind::kArgument, "arguments", plan.arguments, buffer.spec);
      break;
    case 2:
      buffer.source = ReadListSource(source, SourceKind::kParameter, "parameters", plan.parameters,
                                     buffer.spec);
      break;
    case 3:
      buffer.source =
          ReadListSource(source, SourceKind::kOutput, "outputs", plan.outputs, buffer.spec);
      break;
    case 4:
      buffer.source =
          ReadListSource(source, SourceKind::kState, "states", SpecsOf(plan.states), buffer.spec);
      break;
    default:
      buffer.source = ReadListSource(source, SourceKind::kNextState, "states", SpecsOf(plan.states),
                                     buffer.spec);
  }
  return buffer;
}

std::vector<int> ReadIndices(const JsonCursor& cursor, std::size_t size, const std::string& what) {
  std::vector<int> indices;
  for (const JsonCursor& item : cursor.Items()) indices.push_back(item.Index(size, what));
  return indices;
}

/// A read brings a parameter from its file to where it is read, so that it has no output.
void CheckRead(const JsonCursor& cursor, const Plan& plan, const Step& step) {
  const bool one = step.inputs.size() == 1 && step.outputs.empty();
  if (one && plan.buffers[step.inputs[0]].source.kind == SourceKind::kParameter) return;
  cursor.Fail("a read has one input, a parameter, and no output");
}

/// A copy moves bytes between two buffers of one type; a host read moves nothing.
void CheckTransfer(const JsonCursor& cursor, const Plan& plan, const Step& step) {
  if (step.kind == StepKind::kHostRead) return;
  if (step.kind == StepKind::kRead) return CheckRead(cursor, plan, step);
  if (step.inputs.size() != 1 || step.outputs.size() != 1) {
    cursor.Fail("a copy has one input and one output, found " + std::to_string(step.inputs.size()) +
                " and " + std::to_string(step.outputs.size()));
  }
  const TensorSpec& from = plan.buffers[step.inputs[0]].spec;
  const TensorSpec& to = plan.buffers[step.outputs[0]].spec;
  if (!from.SameType(to)) {
    cursor.Fail("a copy's buffers must agree, found " + from.ToString() + " and " + to.ToString());
  }
}

void CheckOutputsAreWritable(const JsonCursor& cursor, const Plan& plan, const Step& step) {
  for (std::size_t i = 0; i < step.outputs.size(); ++i) {
    const SourceKind kind = plan.buffers[step.outputs[i]].source.kind;
    if (kind == SourceKind::kArgument || kind == SourceKind::kParameter ||
        kind == SourceKind::kState) {
      cursor.Field("outputs").Items()[i].Unexpected(
          "a buffer in an arena, an output or a next state: a step must not write arguments, "
          "parameters and states");
    }
  }
}

Step ReadStep(const JsonCursor& cursor, const Plan& plan, TemplateSizes* open) {
  cursor.AllowFields({"queue", "kind", "name", "function", "calling", "inputs", "outputs", "waits",
                      "duration_ns", "event", "evict", "cores", "sizes"});
  Step step;
  step.queue = cursor.Field("queue").Index(plan.queues.size(), "queues");
  step.kind =
      static_cast<StepKind>(cursor.Field("kind").Word({"kernel", "copy", "host_read", "read"}));
  step.name = cursor.Field("name").String();
  if (step.kind == StepKind::kKernel) {
    step.function = cursor.Field("function").Name();
    if (auto calling = cursor.OptionalField("calling"); calling) {
      step.calling = static_cast<Calling>(calling->Word({"dps", "packed"}));
    }
  }
  if (auto inputs = cursor.OptionalField("inputs"); inputs) {
    step.inputs = ReadIndices(*inputs, plan.buffers.size(), "buffers");
  }
  if (auto outputs = cursor.OptionalField("outputs"); outputs) {
    step.outputs = ReadIndices(*outputs, plan.buffers.size(), "buffers");
  }
  if (auto sizes = cursor.OptionalField("sizes"); sizes) {
    if (step.kind != StepKind::kKernel) sizes->Fail("only kernels are given sizes");
    for (const JsonCursor& item : sizes->Items()) {
      constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
      step.sizes.push_back(open == nullptr ? item.Int(-kMost, kMost) : -1 - open->Add(item));
    }
  }
  for (const JsonCursor& wait : cursor.Field("waits").Items()) {
    const std::size_t earlier = plan.steps.size();
    if (earlier == 0) wait.Unexpected("nothing: the first step has no step to wait for");
    step.waits.push_back(wait.Index(earlier, "the steps before this one"));
  }
  step.duration = Nanoseconds(cursor.Field("duration_ns").NonNegative());
  if (auto cores = cursor.OptionalField("cores"); cores) step.cores = ReadShare(*cores);
  if (auto evict = cursor.OptionalField("evict"); evict) step.evict = evict->Bool();
  auto event = cursor.OptionalField("event");
  step.event_json =
      event ? std::string(tvm::ffi::json::Stringify(event->value())) : std::string("null");
  if (step.kind != StepKind::kKernel) CheckTransfer(cursor, plan, step);
  CheckOutputsAreWritable(cursor, plan, step);
  return step;
}

/// Every output, and every next state, is written by exactly one step, or a run would return or
/// leave what nobody computed.
void CheckWritten(const JsonCursor& cursor, const Plan& plan, SourceKind kind) {
  const bool outputs = kind == SourceKind::kOutput;
  const char* list = outputs ? "outputs" : "states";
  std::vector<int> writers(outputs ? plan.outputs.size() : plan.states.size(), -1);
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    for (int buffer : plan.steps[i].outputs) {
      const Source& source = plan.buffers[buffer].source;
      if (source.kind != kind) continue;
      int& writer = writers[source.index];
      if (writer >= 0) {
        cursor.Field(list).Items()[source.index].Fail(
            "is written by " + plan.DescribeStep(writer) + " and by " +
            plan.DescribeStep(static_cast<int>(i)) + "; exactly one step must write it");
      }
      writer = static_cast<int>(i);
    }
  }
  for (std::size_t k = 0; k < writers.size(); ++k) {
    if (writers[k] < 0) {
      cursor.Field(list).Items()[k].Fail("no step writes it; exactly one step must");
    }
  }
}

/// Old and new value of a state in place share their memory. So the old one is read by the kernel
/// that writes the new one, and by no other step, which could find either.
void CheckInPlace(const JsonCursor& cursor, const Plan& plan) {
  const auto touches = [&plan](const std::vector<int>& list, SourceKind kind, std::size_t state) {
    return std::any_of(list.begin(), list.end(), [&](int buffer) {
      const Source& source = plan.buffers[buffer].source;
      return source.kind == kind && source.index == static_cast<int>(state);
    });
  };
  for (std::size_t k = 0; k < plan.states.size(); ++k) {
    if (!plan.states[k].in_place) continue;
    for (std::size_t i = 0; i < plan.steps.size(); ++i) {
      const Step& step = plan.steps[i];
      const bool reads = touches(step.inputs, SourceKind::kState, k);
      const bool writes = touches(step.outputs, SourceKind::kNextState, k);
      if (reads == writes && (!writes || step.kind == StepKind::kKernel)) continue;
      cursor.Field("states").Items()[k].Fail(
          "is updated in place, and " + plan.DescribeStep(static_cast<int>(i)) +
          (writes ? " writes it without reading it" : " reads its old value") +
          "; one kernel, and no other step, must read the old value and write the new one");
    }
  }
}

/// Sums of durations, the length of a run among them, must fit into 64 bits.
void CheckDurations(const JsonCursor& cursor, const Plan& plan) {
  Nanoseconds left = Nanoseconds::max() / 2;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    if (plan.steps[i].duration > left) {
      cursor.Field("steps")
          .Items()[i]
          .Field("duration_ns")
          .Fail("the durations of all steps together are more than 146 years");
    }
    left -= plan.steps[i].duration;
  }
}

std::shared_ptr<TemplateSizes> ReadSymbols(const JsonCursor& cursor) {
  auto open = std::make_shared<TemplateSizes>();
  std::set<std::string> seen;
  for (const JsonCursor& item : cursor.Items()) {
    item.AllowFields({"name", "low", "high", "anchor"});
    Symbol symbol{item.Field("name").Name()};
    RejectTwice(seen, item.Field("name"), "symbols");
    if (auto low = item.OptionalField("low")) symbol.low = low->NonNegative();
    if (auto high = item.OptionalField("high")) {
      symbol.high = high->Int(symbol.low, std::numeric_limits<std::int64_t>::max());
    }
    if (auto anchor = item.OptionalField("anchor")) symbol.anchor = anchor->NonNegative();
    open->symbols.push_back(std::move(symbol));
  }
  return open;
}

void ReadConditions(const JsonCursor& cursor, TemplateSizes* open) {
  for (const JsonCursor& item : cursor.Items()) {
    item.AllowFields({"where", "size", "needed"});
    const int size = open->Add(item.Field("size"));
    open->conditions.push_back({item.Field("where").Name(), size, open->Add(item.Field("needed"))});
  }
}

/// A call's sizes are those of dimensions that are whole symbols.
void CheckSymbols(const JsonCursor& cursor, const Plan& plan) {
  std::vector<bool> found(plan.open->symbols.size());
  for (const TensorSpec& argument : plan.arguments) {
    for (std::int64_t extent : argument.shape) {
      const int symbol = extent < 0 ? plan.open->expressions[-1 - extent].symbol() : -1;
      if (symbol >= 0) found[symbol] = true;
    }
  }
  for (std::size_t k = 0; k < found.size(); ++k) {
    if (!found[k]) cursor.Items()[k].Fail("no argument has this symbol as a dimension");
  }
}

void ReadTakes(const JsonCursor& cursor, Plan* plan) {
  for (const JsonCursor& item : cursor.Items()) {
    item.AllowFields({"value", "element", "dimension"});
    Taken taken{static_cast<int>(item.Field("value").Int(0, 1 << 20))};
    if (auto element = item.OptionalField("element")) {
      taken.element = static_cast<int>(element->Int(0, 1 << 10));
    } else if (auto dimension = item.OptionalField("dimension")) {
      taken.dimension = static_cast<int>(dimension->Int(0, 1 << 10));
    }
    plan->takes.push_back(taken);
  }
  plan->later = true;
  if (plan->takes.size() != plan->arguments.size()) {
    cursor.Fail("expected an entry for each of the plan's " +
                std::to_string(plan->arguments.size()) + " arguments");
  }
}

Plan ReadPlan(const JsonCursor& cursor) {
  CheckFormat(cursor);
  cursor.AllowFields({"format", "version", "name", "backend", "devices", "queues", "arguments",
                      "parameters", "buffers", "outputs", "states", "steps", "threads",
                      "queue_depth", "symbols", "conditions", "takes"});
  Plan plan;
  plan.name = cursor.Field("name").Name();
  plan.backend =
      static_cast<BackendKind>(cursor.Field("backend").Word({"cpu", "emulated", "cuda"}));
  if (auto threads = cursor.OptionalField("threads")) plan.threads = ReadThreads(*threads);
  if (auto depth = cursor.OptionalField("queue_depth")) {
    plan.queue_depth = static_cast<int>(depth->Int(1, 1024));
  }
  std::shared_ptr<TemplateSizes> open;
  if (auto symbols = cursor.OptionalField("symbols")) {
    plan.open = open = ReadSymbols(*symbols);
    if (plan.backend != BackendKind::kCpu || cursor.OptionalField("states")) {
      symbols->Fail("a plan with symbols has the backend \"cpu\" and no states");
    }
  }
  plan.devices = ReadDevices(cursor.Field("devices"), open != nullptr);
  ReadQueues(cursor.Field("queues"), &plan);
  plan.arguments = ReadTensors(cursor.Field("arguments"), "", open.get());
  plan.parameters = ReadTensors(cursor.Field("parameters"), "parameters");
  plan.outputs = ReadTensors(cursor.Field("outputs"), "", open.get());
  if (auto takes = cursor.OptionalField("takes")) ReadTakes(*takes, &plan);
  if (auto states = cursor.OptionalField("states")) plan.states = ReadStates(*states, plan);
  for (const JsonCursor& item : cursor.Field("buffers").Items()) {
    plan.buffers.push_back(ReadBuffer(item, plan, open.get()));
  }
  for (const JsonCursor& item : cursor.Field("steps").Items()) {
    plan.steps.push_back(ReadStep(item, plan, open.get()));
  }
  CheckWritten(cursor, plan, SourceKind::kOutput);
  CheckWritten(cursor, plan, SourceKind::kNextState);
  CheckInPlace(cursor, plan);
  CheckDurations(cursor, plan);
  if (auto conditions = cursor.OptionalField("conditions")) {
    if (!open) conditions->Fail("only a plan with symbols has conditions");
    ReadConditions(*conditions, open.get());
  }
  if (open) {
    CheckSymbols(cursor.Field("symbols"), plan);
    open->FindLifetimes(cursor, plan);
  }
  return plan;
}

/// Plans that share a state agree on whether it has one place or two.
void CheckSamePlaces(const JsonCursor& cursor, const Plan& plan, const Plan& other) {
  for (const State& a : plan.states) {
    for (const State& b : other.states) {
      if (a.spec.name != b.spec.name || a.in_place == b.in_place) continue;
      cursor.Fail("state \"" + a.spec.name + "\" is updated in place in one of the plans \"" +
                  other.name + "\" and \"" + plan.name + "\" and not in the other");
    }
  }
}

bool SameArguments(const Plan& a, const Plan& b) {
  if (a.arguments.size() != b.arguments.size()) return false;
  for (std::size_t i = 0; i < a.arguments.size(); ++i) {
    if (!a.arguments[i].SameType(b.arguments[i])) return false;
  }
  return true;
}

/// What two plans know by one name is of one type.
void CheckSameTypes(const JsonCursor& cursor, const std::string& what, const Plan& plan,
                    const std::vector<TensorSpec>& tensors, const Plan& other,
                    const std::vector<TensorSpec>& others) {
  for (const TensorSpec& a : tensors) {
    for (const TensorSpec& b : others) {
      if (a.name != b.name || a.SameType(b)) continue;
      cursor.Fail(what + " \"" + a.name + "\" is " + b.ToString() + " in plan \"" + other.name +
                  "\" and " + a.ToString() + " in plan \"" + plan.name + "\"");
    }
  }
}

/// Templates of one artifact take the same sizes; which of them runs, their anchors say.
void CheckSameSizes(const JsonCursor& cursor, const Plan& first, const Plan& other) {
  const std::vector<Symbol>&a = first.open->symbols, &b = other.open->symbols;
  const bool same =
      std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
        return x.name == y.name && x.low == y.low && x.high == y.high;
      });
  if (!same || !first.open->SameShapes(first.arguments, *other.open, other.arguments)) {
    cursor.Fail(
        "plans \"" + first.name + "\" and \"" + other.name +
        "\" have symbols, but not the same ones with the same limits in the same arguments");
  }
  const auto ends = [](const Symbol& symbol) { return symbol.anchor.has_value(); };
  if (std::none_of(a.begin(), a.end(), ends)) {
    cursor.Fail("plan \"" + first.name + "\" takes all sizes, so that the later plan \"" +
                other.name + "\" with symbols is never chosen; give an anchor");
  }
}

/// Plans of one artifact must differ in name and in their arguments.
void CheckTogether(const JsonCursor& cursor, const std::vector<Plan>& plans) {
  if (plans[0].later) cursor.Fail("the first plan is a later segment");
  for (std::size_t p = 1; p < plans.size(); ++p) {
    if (plans[p - 1].later && !plans[p].later) cursor.Fail("a plan follows the later segments");
  }
  for (std::size_t i = 0; i < plans.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (plans[i].name == plans[j].name) {
        cursor.Fail("two plans have the name \"" + plans[i].name + "\"");
      }
      const bool segments = plans[i].later || plans[j].later;
      if (!segments && plans[i].open && plans[j].open) {
        CheckSameSizes(cursor, plans[j], plans[i]);
      } else if (!segments && SameArguments(plans[i], plans[j])) {
        cursor.Fail("plans \"" + plans[j].name + "\" and \"" + plans[i].name +
                    "\" take arguments of the same shapes and dtypes, so none could be chosen");
      }
      CheckSameTypes(cursor, "parameter", plans[i], plans[i].parameters, plans[j],
                     plans[j].parameters);
      CheckSameTypes(cursor, "state", plans[i], SpecsOf(plans[i].states), plans[j],
                     SpecsOf(plans[j].states));
      CheckSamePlaces(cursor, plans[i], plans[j]);
    }
  }
}

}  // namespace

std::vector<Plan> ReadPlans(const std::string& json) {
  const JsonCursor document = JsonCursor::Parse(json, "$");
  std::vector<Plan> plans;
  if (document.value().as<tvm::ffi::json::Object>()) {
    plans.push_back(ReadPlan(document));
    return plans;
  }
  for (const JsonCursor& item : document.Items()) plans.push_back(ReadPlan(item));
  if (plans.empty()) document.Fail("an artifact has at least one plan");
  CheckTogether(document, plans);
  return plans;
}

}  // namespace tvm_sched::runtime
