#include "runtime/residency.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace tvm_sched::runtime {

namespace {

/// By parameter: whether it remains.
std::vector<bool> Chosen(const Plan& plan, const std::vector<std::vector<int>>& steps,
                         const Resident& resident) {
  std::vector<bool> chosen(plan.parameters.size());
  if (const auto* names = std::get_if<std::vector<std::string>>(&resident)) {
    for (std::size_t p = 0; p < chosen.size(); ++p) {
      chosen[p] = std::find(names->begin(), names->end(), plan.parameters[p].name) != names->end();
    }
    return chosen;
  }
  if (std::get<double>(resident) == 0) return chosen;  // empty parameters move in a cold run, too
  Bytes total, taken;
  for (std::size_t p = 0; p < chosen.size(); ++p) {
    if (!steps[p].empty()) total = total + plan.parameters[p].size();
  }
  const auto limit = static_cast<std::int64_t>(
      std::floor(std::get<double>(resident) * static_cast<double>(total.count)));
  for (std::size_t p = 0; p < chosen.size(); ++p) {
    if (steps[p].empty()) continue;
    taken = taken + plan.parameters[p].size();
    if (taken.count > limit) break;
    chosen[p] = true;
  }
  return chosen;
}

bool Overlap(const Buffer& a, const Buffer& b) {
  if (b.source.kind != SourceKind::kArena || a.source.index != b.source.index) return false;
  return a.source.offset < b.source.offset + b.spec.size() &&
         b.source.offset < a.source.offset + a.spec.size();
}

void CheckAlone(const Plan& plan, int buffer) {
  if (plan.open) return;  // it has no offsets yet, and its instances keep parameters apart
  const Buffer& mine = plan.buffers[buffer];
  for (std::size_t other = 0; other < plan.buffers.size(); ++other) {
    if (static_cast<int>(other) == buffer || !Overlap(mine, plan.buffers[other])) continue;
    throw std::invalid_argument(
        "parameter \"" + mine.spec.name + "\" can't remain on device \"" +
        plan.devices[mine.source.index].name + "\": tensor \"" + plan.buffers[other].spec.name +
        "\" lies in the same memory at another time, for the device has too little of it; "
        "schedule for devices with more memory, or leave the parameter out");
  }
}

}  // namespace

std::vector<std::vector<int>> StepsOfParameters(const Plan& plan) {
  std::vector<std::vector<int>> steps(plan.parameters.size());
  std::vector<int> parameter(plan.buffers.size(), -1);
  std::vector<bool> evicted(plan.parameters.size());
  for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
    const Source& source = plan.buffers[b].source;
    if (source.kind == SourceKind::kParameter) parameter[b] = source.index;
  }
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    if (step.kind == StepKind::kRead) {
      steps[parameter[step.inputs[0]]].push_back(static_cast<int>(i));
      if (step.evict) evicted[parameter[step.inputs[0]]] = true;
    }
    if (step.kind != StepKind::kCopy) continue;
    const int moved = parameter[step.inputs[0]];
    // What lands in an output is the caller's, who gets it anew in each run.
    if (moved < 0 || plan.buffers[step.outputs[0]].source.kind != SourceKind::kArena) continue;
    parameter[step.outputs[0]] = moved;
    steps[moved].push_back(static_cast<int>(i));
    if (step.evict) evicted[moved] = true;
  }
  for (std::size_t p = 0; p < steps.size(); ++p) {
    if (evicted[p]) steps[p].clear();
  }
  return steps;
}

std::vector<bool> StepsSkippedWhenWarm(const Plan& plan, const Resident& resident) {
  const std::vector<std::vector<int>> steps = StepsOfParameters(plan);
  const std::vector<bool> chosen = Chosen(plan, steps, resident);
  std::vector<bool> skipped;
  for (std::size_t p = 0; p < chosen.size(); ++p) {
    if (!chosen[p]) continue;
    for (int step : steps[p]) {
      if (plan.steps[step].kind == StepKind::kCopy) CheckAlone(plan, plan.steps[step].outputs[0]);
      skipped.resize(plan.steps.size());
      skipped[step] = true;
    }
  }
  return skipped;
}

std::vector<bool> BroughtBy(const Plan& plan, const std::vector<bool>& skipped) {
  std::vector<bool> brought(plan.buffers.size());
  for (std::size_t step = 0; step < skipped.size(); ++step) {
    if (skipped[step] && plan.steps[step].kind == StepKind::kCopy)
      brought[plan.steps[step].outputs[0]] = true;
  }
  return brought;
}

ArenaLayout CloseGaps(const Plan& plan, const std::vector<bool>& elsewhere) {
  constexpr std::int64_t kStep =
      256;  // large tensors on GPUs start at multiples of it, and still do
  ArenaLayout layout{std::vector<Bytes>(plan.buffers.size()),
                     std::vector<Bytes>(plan.devices.size())};
  std::vector<std::size_t> left;
  for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
    if (plan.buffers[b].source.kind == SourceKind::kArena && !elsewhere[b]) left.push_back(b);
  }
  const auto offset = [&](std::size_t b) { return plan.buffers[b].source.offset; };
  std::stable_sort(left.begin(), left.end(),
                   [&](std::size_t a, std::size_t b) { return offset(a) < offset(b); });
  std::vector<Bytes> end(plan.devices.size());    // of what was seen of each arena, in the plan's
  std::vector<Bytes> moved(plan.devices.size());  // by how much what comes next lies lower
  for (std::size_t b : left) {
    const int device = plan.buffers[b].source.index;
    if (offset(b) > end[device]) {
      const std::int64_t gap = offset(b).count - end[device].count;
      moved[device].count += gap / kStep * kStep;
    }
    layout.offsets[b] = {offset(b).count - moved[device].count};
    end[device] = std::max(end[device], offset(b) + plan.buffers[b].spec.size());
    layout.sizes[device] = {end[device].count - moved[device].count};
  }
  return layout;
}

}  // namespace tvm_sched::runtime
