#include "ffi/runtime/timeline.h"

#include <tvm/ffi/extra/json.h>

#include <cmath>

#include "runtime/stages.h"

namespace tvm_sched::runtime {

namespace ffi = tvm::ffi;

namespace {

std::string Quote(const std::string& text) { return ffi::json::Stringify(ffi::String(text)); }

Resident ReadResident(const JsonCursor& cursor) {
  if (cursor.IsNull()) return 0.0;
  if (cursor.value().as<ffi::json::Array>()) {
    std::vector<std::string> names;
    for (const JsonCursor& item : cursor.Items()) names.push_back(item.Name());
    return names;
  }
  const double part = cursor.Number();
  if (!(part >= 0 && part <= 1)) cursor.Unexpected("a fraction from 0 to 1, or a list of names");
  return part;
}

}  // namespace

RunOptions ReadOptions(const JsonCursor& cursor, RunOptions options) {
  cursor.AllowFields({"trace", "times_only", "emulation_scale", "resident", "instances", "watchdog",
                      "devices", "graph", "in_turn", "pinned_outputs", "kept_sizes"});
  if (auto trace = cursor.OptionalField("trace"); trace) options.trace = trace->Bool();
  if (auto times = cursor.OptionalField("times_only"); times) options.times_only = times->Bool();
  if (auto scale = cursor.OptionalField("emulation_scale"); scale) {
    options.emulation_scale.reset();
    if (!scale->IsNull()) {
      const double number = scale->Number();
      if (!(number > 0) || !std::isfinite(number)) scale->Unexpected("a number above 0, or null");
      options.emulation_scale = number;
    }
  }
  if (auto resident = cursor.OptionalField("resident"); resident) {
    options.resident = ReadResident(*resident);
  }
  if (auto instances = cursor.OptionalField("instances"); instances) {
    options.instances = static_cast<int>(instances->Int(1, 1024));
  }
  if (auto kept = cursor.OptionalField("kept_sizes"); kept) {
    options.kept_sizes = static_cast<int>(kept->Int(1, 1 << 20));
  }
  if (auto watchdog = cursor.OptionalField("watchdog"); watchdog) {
    const double seconds = watchdog->IsNull() ? 0 : watchdog->Number();
    if (!(seconds >= 0 && seconds < 1e9)) watchdog->Unexpected("seconds, 0 or more, or null");
    options.watchdog = Nanoseconds(std::llround(seconds * 1e9));
  }
  if (auto devices = cursor.OptionalField("devices"); devices) {
    options.devices.clear();
    const bool listed = !devices->IsNull();
    for (const JsonCursor& gpu : listed ? devices->Items() : std::vector<JsonCursor>{}) {
      options.devices.push_back(static_cast<int>(gpu.Int(0, 1 << 16)));
    }
  }
  if (auto graph = cursor.OptionalField("graph"); graph) options.graph = graph->Bool();
  if (auto turns = cursor.OptionalField("in_turn"); turns) options.in_turn = turns->Bool();
  if (auto pinned = cursor.OptionalField("pinned_outputs"); pinned) {
    options.pinned_outputs = pinned->Bool();
  }
  return options;
}

ffi::String WriteTimeline(const std::vector<LastRun>& runs) {
  const Plan& plan = *runs.front().plan;
  Nanoseconds latency{0}, wall{0}, delay{0};
  for (const LastRun& run : runs) {
    latency += run.record.latency;
    wall += run.record.wall;
    delay = std::max(delay, run.record.largest_delay);
  }
  std::string text = "{\"plan\":" + Quote(plan.name) + ",\"backend\":\"" +
                     BackendName(plan.backend) +
                     "\",\"scale\":" + std::string(ffi::json::Stringify(runs.front().scale)) +
                     ",\"latency_ns\":" + std::to_string(latency.count()) +
                     ",\"wall_ns\":" + std::to_string(wall.count()) +
                     ",\"largest_delay_ns\":" + std::to_string(delay.count()) + ",\"events\":[";
  bool first = true;
  Nanoseconds begin{0};  // of a segment
  std::size_t before = 0;
  for (const LastRun& run : runs) {
    const Plan& own = *run.plan;
    for (std::size_t i = 0; i < own.steps.size(); ++i) {
      if (!run.skipped.empty() && run.skipped[i]) continue;
      const Interval& interval = run.record.steps[i];
      text += (first ? "{\"step\":" : ",{\"step\":") + std::to_string(before + i) +
              ",\"queue\":" + Quote(own.queues[own.steps[i].queue]) +
              ",\"start_ns\":" + std::to_string((begin + interval.start).count()) +
              ",\"end_ns\":" + std::to_string((begin + interval.end).count()) +
              ",\"event\":" + own.steps[i].event_json + "}";
      first = false;
    }
    begin += run.record.latency;
    before += own.steps.size();
  }
  return text + "]}";
}

ffi::String WriteStages() {
  const Clock::time_point start = ProcessStart();
  const auto since = [&](Clock::time_point time) {
    return std::to_string(Nanoseconds(time - start).count());
  };
  std::string text = "[";
  for (const Stage& stage : NotedStages()) {
    text += (text.size() == 1 ? "{\"name\":" : ",{\"name\":") + Quote(stage.name) +
            ",\"start_ns\":" + since(stage.begin) + ",\"end_ns\":" + since(stage.end) +
            ",\"bytes\":" + std::to_string(stage.bytes) + "}";
  }
  return text + "]";
}

}  // namespace tvm_sched::runtime
