#include "runtime/plan_template.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "runtime/plan_reader.h"

namespace tvm_sched::runtime {

namespace {

using Sizes = std::vector<std::int64_t>;

constexpr std::int64_t kLargestArena = std::int64_t{1} << 62;
/// Of all tensors of a kernel, fewest for which waking other threads pays: about 15 us of loops.
constexpr Bytes kFewestShared{std::int64_t{128} << 10};

std::string Text(const TensorSpec& spec, const TemplateSizes& open) {
  std::string text = spec.name + "[";
  for (std::size_t axis = 0; axis < spec.shape.size(); ++axis) {
    const std::int64_t extent = spec.shape[axis];
    if (axis) text += ", ";
    if (extent >= 0) {
      text += std::to_string(extent);
    } else {
      const SizeExpression& size = open.expressions[-1 - extent];
      text += size.symbol() < 0 ? size.text() : open.symbols[size.symbol()].name;
    }
  }
  return text + "]";
}

/// Place each buffer at the lowest offset that no buffer in use covers.
void LayOut(const TemplateSizes& open, Plan* plan) {
  for (std::size_t b = 0; b < open.blocks.size(); ++b) {
    Buffer& buffer = plan->buffers[open.blocks[b]];
    const std::int64_t size = buffer.spec.size().count;
    std::vector<std::pair<std::int64_t, std::int64_t>> taken;
    for (int other : open.in_use[b]) {
      const Buffer& before = plan->buffers[other];
      taken.emplace_back(before.source.offset.count,
                         before.source.offset.count + before.spec.size().count);
    }
    std::sort(taken.begin(), taken.end());
    std::int64_t at = 0;
    for (const auto& [low, high] : taken) {
      if (at + size <= low) break;
      constexpr auto kStep = static_cast<std::int64_t>(kAlignment);
      at = std::max(at, (high + kStep - 1) / kStep * kStep);
    }
    if (at > kLargestArena - size) {
      throw SizeError("the buffers of device \"" + plan->devices[buffer.source.index].name +
                      "\" would take more than 2^62 bytes");
    }
    buffer.source.offset = {at};
    Bytes& arena = plan->devices[buffer.source.index].arena;
    arena = std::max(arena, {at + size});
  }
}

/// `model[n=3, m=4]`
std::string InstanceName(const Plan& plan_template, const Sizes& sizes) {
  std::string name = plan_template.name + "[";
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    name += (k ? ", " : "") + plan_template.open->symbols[k].name + "=" + std::to_string(sizes[k]);
  }
  return name + "]";
}

}  // namespace

bool IsAnchorOf(const Plan& plan_template, const std::vector<std::int64_t>& sizes) {
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    const std::optional<std::int64_t>& anchor = plan_template.open->symbols[k].anchor;
    if (anchor && sizes[k] > *anchor) return false;
  }
  return true;
}

bool TemplateSizes::SameShapes(const std::vector<TensorSpec>& own, const TemplateSizes& other,
                               const std::vector<TensorSpec>& others) const {
  const auto same = [&](std::int64_t a, std::int64_t b) {
    return a < 0 && b < 0 ? expressions[-1 - a].text() == other.expressions[-1 - b].text() : a == b;
  };
  return std::equal(own.begin(), own.end(), others.begin(), others.end(),
                    [&same](const TensorSpec& a, const TensorSpec& b) {
                      return a.name == b.name && SameDtype(a.dtype, b.dtype) &&
                             std::equal(a.shape.begin(), a.shape.end(), b.shape.begin(),
                                        b.shape.end(), same);
                    });
}

int TemplateSizes::Add(const JsonCursor& cursor) {
  std::vector<std::string> names;
  for (const Symbol& symbol : symbols) names.push_back(symbol.name);
  SizeExpression read(cursor, names);
  for (std::size_t k = 0; k < expressions.size(); ++k) {
    if (expressions[k].text() == read.text()) return static_cast<int>(k);
  }
  expressions.push_back(std::move(read));
  return static_cast<int>(expressions.size()) - 1;
}

void TemplateSizes::FindLifetimes(const JsonCursor& cursor, const Plan& plan) {
  const std::size_t steps = plan.steps.size();
  std::vector<std::vector<int>> users(plan.buffers.size());
  std::vector<bool> parameter(plan.buffers.size());  // it holds one, also in the next, warm run
  for (std::size_t b = 0; b < parameter.size(); ++b) {
    parameter[b] = plan.buffers[b].source.kind == SourceKind::kParameter;
  }
  const auto moves = [&parameter](const Step& step) {
    return step.kind == StepKind::kRead ||
           (step.kind == StepKind::kCopy && parameter[step.inputs[0]]);
  };
  // Of each step: the steps that have ended when it begins, by queues and waits.
  std::vector<std::vector<bool>> ended(steps, std::vector<bool>(steps));
  std::vector<int> last(plan.queues.size(), -1);
  for (std::size_t s = 0; s < steps; ++s) {
    const Step& step = plan.steps[s];
    const auto follow = [&](int other, bool alone) {
      ended[s][other] = true;
      if (alone) return;  // a warm run may leave it out
      for (int k = 0; k < other; ++k) ended[s][k] = ended[s][k] || ended[other][k];
    };
    if (last[step.queue] >= 0) follow(last[step.queue], false);
    for (int wait : step.waits) follow(wait, moves(plan.steps[wait]));
    if (!moves(step)) last[step.queue] = static_cast<int>(s);
    if (moves(step) && step.kind == StepKind::kCopy) parameter[step.outputs[0]] = true;
    for (int b : step.inputs) {
      if (users[b].empty() && plan.buffers[b].source.kind == SourceKind::kArena) {
        cursor.Field("steps").Items()[s].Field("inputs").Fail(
            "buffer " + std::to_string(b) + " (\"" + plan.buffers[b].spec.name +
            "\") is read before a step writes it");
      }
    }
    for (int b : step.outputs) {
      if (users[b].empty() && plan.buffers[b].source.kind == SourceKind::kArena) {
        blocks.push_back(b);
      }
      users[b].push_back(static_cast<int>(s));
    }
    for (int b : step.inputs) users[b].push_back(static_cast<int>(s));
  }
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const std::vector<bool>& over = ended[users[blocks[b]].front()];
    in_use.emplace_back();
    for (std::size_t a = 0; a < b; ++a) {
      const int other = blocks[a];
      if (plan.buffers[other].source.index != plan.buffers[blocks[b]].source.index) continue;
      const bool done = !parameter[other] && !parameter[blocks[b]] &&
                        std::all_of(users[other].begin(), users[other].end(),
                                    [&over](int step) { return static_cast<bool>(over[step]); });
      if (!done) in_use.back().push_back(other);
    }
  }
}

std::vector<std::int64_t> BindSizes(const Plan& plan_template,
                                    const std::vector<TensorSpec>& given) {
  const TemplateSizes& open = *plan_template.open;
  const std::vector<TensorSpec>& wanted = plan_template.arguments;
  if (given.size() != wanted.size()) {
    std::string names;
    for (const TensorSpec& spec : wanted) names += (names.empty() ? "" : ", ") + Text(spec, open);
    throw SizeError(std::to_string(given.size()) + " inputs are given; the model takes " +
                    std::to_string(wanted.size()) + ": " + names);
  }
  Sizes sizes(open.symbols.size());
  std::vector<std::string> places(open.symbols.size());
  // Whole symbols first: they give the values of the expressions.
  for (const bool expressions : {false, true}) {
    for (std::size_t i = 0; i < given.size(); ++i) {
      const std::string input = "input '" + wanted[i].name + "'";
      if (!SameDtype(given[i].dtype, wanted[i].dtype)) {
        throw SizeError(input + " is of the type " + DtypeName(given[i].dtype) + "; " +
                        DtypeName(wanted[i].dtype) + " is needed");
      }
      if (given[i].shape.size() != wanted[i].shape.size()) {
        throw SizeError(input + " has the shape " + ShapeName(given[i].shape) +
                        "; the model takes " + Text(wanted[i], open));
      }
      for (std::size_t axis = 0; axis < given[i].shape.size(); ++axis) {
        const std::int64_t size = given[i].shape[axis], extent = wanted[i].shape[axis];
        const SizeExpression* formula = extent < 0 ? &open.expressions[-1 - extent] : nullptr;
        const std::string where = "dimension " + std::to_string(axis) + " of " + input;
        if (formula == nullptr || formula->symbol() < 0) {
          if (!expressions) continue;
          const std::int64_t fixed = formula ? formula->Evaluate(sizes) : extent;
          if (size != fixed) {
            throw SizeError(where + " is " + std::to_string(size) + "; the model fixes it at " +
                            std::to_string(fixed) + ": " + Text(wanted[i], open));
          }
          continue;
        }
        const Symbol& symbol = open.symbols[formula->symbol()];
        std::string& place = places[formula->symbol()];
        std::int64_t& first = sizes[formula->symbol()];
        if (place.empty()) {
          place = where;
          first = size;
        }
        const std::string called = where + " ('" + symbol.name + "') is " + std::to_string(size);
        if (size != first) {
          throw SizeError(called + ", and " + place + " is " + std::to_string(first) +
                          "; they must be equal");
        }
        if (size < symbol.low || (symbol.high && size > *symbol.high)) {
          throw SizeError(called + "; sizes from " + std::to_string(symbol.low) +
                          (symbol.high ? " to " + std::to_string(*symbol.high) : "") +
                          " are allowed");
        }
      }
    }
  }
  return sizes;
}

std::shared_ptr<const Plan> Instantiate(const Plan& plan_template,
                                        const std::vector<std::int64_t>& sizes) {
  const TemplateSizes& open = *plan_template.open;
  for (const Condition& condition : open.conditions) {
    const std::int64_t size = open.expressions[condition.size].Evaluate(sizes);
    const std::int64_t needed = open.expressions[condition.needed].Evaluate(sizes);
    if (size != needed) {
      throw SizeError(condition.where + " is " + std::to_string(size) + ", and " +
                      std::to_string(needed) + " is needed");
    }
  }
  Sizes values;
  for (const SizeExpression& expression : open.expressions) {
    values.push_back(expression.Evaluate(sizes));
  }
  auto plan = std::make_shared<Plan>(plan_template);
  plan->open.reset();
  plan->name = InstanceName(plan_template, sizes);
  const auto fill = [&values](TensorSpec* spec) {
    std::int64_t elements = 1;
    for (std::int64_t& extent : spec->shape) {
      if (extent < 0) extent = values[-1 - extent];
      if (extent < 0 || (extent != 0 && elements > kLargestTensor / extent)) {
        throw SizeError("tensor \"" + spec->name + "\" would have the shape " +
                        ShapeName(spec->shape) +
                        "; extents from 0 and up to 2^50 elements are allowed");
      }
      elements *= extent;
    }
  };
  for (std::vector<TensorSpec>* list : {&plan->arguments, &plan->outputs}) {
    for (TensorSpec& spec : *list) fill(&spec);
  }
  for (Buffer& buffer : plan->buffers) fill(&buffer.spec);
  for (Step& step : plan->steps) {
    for (std::int64_t& size : step.sizes) {
      if (size < 0) size = values[-1 - size];
    }
    Bytes moved{0};
    for (const std::vector<int>* list : {&step.inputs, &step.outputs}) {
      for (int buffer : *list) moved = moved + plan->buffers[buffer].spec.size();
    }
    if (moved < kFewestShared) step.cores = {0, 1};  // one thread, however many there are
  }
  LayOut(open, plan.get());
  for (const Device& device : plan->devices) {
    if (!device.memory || device.arena <= *device.memory) continue;
    throw SizeError("device \"" + device.name + "\" has " + std::to_string(device.memory->count) +
                    " bytes, but the plan \"" + plan->name + "\" needs " +
                    std::to_string(device.arena.count) + " there; use smaller inputs");
  }
  return plan;
}

}  // namespace tvm_sched::runtime
