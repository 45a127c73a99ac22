#include "kernels/cuda/attention.h"

#include "kernels/cuda/cudnn_graph.h"

namespace tvm_sched::cuda_kernels {

using runtime::JsonCursor;

namespace {

constexpr float kMasked = -3e38f;  // a score that counts for nothing

AttentionDescription::Place ReadPlace(const JsonCursor& list) {
  const std::vector<JsonCursor> items = list.Items();
  AttentionDescription::Place place{};
  if (items.size() != place.size()) list.Fail("an offset and three strides are expected");
  constexpr std::int64_t kLargest = 1LL << 40;
  for (std::size_t k = 0; k < place.size(); ++k) place[k] = items[k].Int(0, kLargest);
  return place;
}

/// Plans are compiled when they are built, in a few hundredths of a second for the best.
EngineRules Rules() { return {.tensor_cores = true, .compiled_at_runtime = true, .most = 2}; }

/// The graph as cuDNN knows attention: the scores, their softmax in these steps with the logarithm
/// of its sum, whether or not it is asked for, and the product with the values.
std::shared_ptr<OperationGraph> GraphOf(const AttentionDescription& d) {
  const int type = d.dtype == "float16" ? kCudnnHalf : kCudnnBfloat16;
  auto graph = std::make_shared<OperationGraph>();
  const GraphTensor scores{{d.batch, d.heads, d.rows, d.keys},
                           {d.heads * d.rows * d.keys, d.rows * d.keys, d.keys, 1},
                           kCudnnFloat};
  const GraphTensor sums{
      {d.batch, d.heads, d.rows, 1}, {d.heads * d.rows, d.rows, 1, 1}, kCudnnFloat};
  const auto virtual_of = [&](GraphTensor like, int of) -> const Descriptor& {
    like.type = of;
    return graph->Virtual(like);
  };
  const Descriptor& q = graph->Argument(
      {{d.batch, d.heads, d.rows, d.width}, {d.query[1], d.query[2], d.query[3], 1}, type}, 0,
      d.query[0]);
  const Descriptor& k = graph->Argument(
      {{d.batch, d.shared_heads, d.width, d.keys}, {d.key[1], d.key[2], 1, d.key[3]}, type}, 1,
      d.key[0]);
  const Descriptor& v = graph->Argument(
      {{d.batch, d.shared_heads, d.keys, d.out}, {d.value[1], d.value[2], d.value[3], 1}, type}, 2,
      d.value[0]);
  const Descriptor& products = graph->Virtual(scores);
  graph->Multiply(q, k, products);
  const Descriptor& factor = graph->Number(d.scale, 4);
  const Descriptor* last = &graph->Virtual(scores);
  graph->Apply({kApplyMultiply, &factor}, products, *last);
  if (d.causal) {
    const Descriptor* row = &virtual_of(scores, kCudnnInt32);
    graph->Apply({.mode = kApplyIndex, .axis = 2}, *last, *row);
    const Descriptor& column = virtual_of(scores, kCudnnInt32);
    graph->Apply({.mode = kApplyIndex, .axis = 3}, *last, column);
    if (d.shift != 0) {
      const Descriptor& shift = graph->WholeNumber(d.shift, 4);
      const Descriptor& shifted = virtual_of(scores, kCudnnInt32);
      graph->Apply({.mode = kApplyAdd, .b = &shift, .compute = kCudnnInt32}, *row, shifted);
      row = &shifted;
    }
    const Descriptor& seen = virtual_of(scores, kCudnnBoolean);
    graph->Apply({.mode = kApplyGreaterEqual, .b = &column, .compute = kCudnnBoolean}, *row, seen);
    const Descriptor& masked = graph->Number(kMasked, 4);
    const Descriptor& chosen = graph->Virtual(scores);
    graph->Apply({.mode = kApplySelect, .b = &masked, .mask = &seen}, *last, chosen);
    last = &chosen;
  }
  const Descriptor& largest = graph->Virtual(sums);
  graph->Reduce(kReduceMax, *last, largest);
  const Descriptor& below = graph->Virtual(scores);
  graph->Apply({kApplySubtract, &largest}, *last, below);
  const Descriptor& powers = graph->Virtual(scores);
  graph->Apply({kApplyExp}, below, powers);
  const Descriptor& sum = graph->Virtual(sums);
  graph->Reduce(kReduceAdd, powers, sum);
  const Descriptor& logarithm = graph->Virtual(sums);
  graph->Apply({kApplyLog}, sum, logarithm);
  const Descriptor& statistics = graph->Virtual(sums);
  graph->Apply({kApplyAdd, &logarithm}, largest, statistics);
  const Descriptor& probabilities = virtual_of(scores, type);
  graph->Apply({kApplyDivide, &sum}, powers, probabilities);
  const Descriptor& result = graph->Argument(
      {{d.batch, d.heads, d.rows, d.out}, {d.result[1], d.result[2], d.result[3], 1}, type}, 3,
      d.result[0]);
  graph->Multiply(probabilities, v, result);
  return graph;
}

}  // namespace

AttentionDescription ReadAttention(const JsonCursor& item) {
  item.AllowFields({"dtype", "batch", "heads", "shared_heads", "rows", "keys", "width", "out",
                    "scale", "causal", "shift", "query", "key", "value", "result"});
  constexpr std::int64_t kLargest = 1LL << 31;
  AttentionDescription d;
  d.dtype = item.Field("dtype").Word({"float16", "bfloat16"}) == 0 ? "float16" : "bfloat16";
  for (auto [name, value] :
       {std::pair("batch", &d.batch), std::pair("heads", &d.heads),
        std::pair("shared_heads", &d.shared_heads), std::pair("rows", &d.rows),
        std::pair("keys", &d.keys), std::pair("width", &d.width), std::pair("out", &d.out)}) {
    *value = item.Field(name).Int(1, kLargest);
  }
  d.scale = static_cast<float>(item.Field("scale").Number());
  d.causal = item.Field("causal").Bool();
  d.shift = static_cast<int>(item.Field("shift").Int(0, kLargest - 1));
  d.query = ReadPlace(item.Field("query"));
  d.key = ReadPlace(item.Field("key"));
  d.value = ReadPlace(item.Field("value"));
  d.result = ReadPlace(item.Field("result"));
  return d;
}

std::string KeyOf(const AttentionDescription& d) {
  std::string key = "attention " + d.dtype + " " + std::to_string(d.scale);
  const auto add = [&](std::int64_t value) { key += " " + std::to_string(value); };
  for (const std::int64_t value : {d.batch, d.heads, d.shared_heads, d.rows, d.keys, d.width, d.out,
                                   std::int64_t{d.causal}, std::int64_t{d.shift}}) {
    add(value);
  }
  for (const auto& place : {d.query, d.key, d.value, d.result}) {
    for (const std::int64_t value : place) add(value);
  }
  return key;
}

std::vector<std::unique_ptr<Candidate>> AttentionCandidates(const AttentionDescription& d,
                                                            Stream stream) {
  try {
    if (CudnnGraph() == nullptr) return {};
    return PlanCandidates(GraphOf(d), Rules(), stream);
  } catch (const CudnnRefusal&) {
    return {};
  }
}

std::vector<std::string> CompileAttention(const AttentionDescription& d,
                                          const std::string& properties) {
  return CompilePlans(*GraphOf(d), properties, Rules());
}

}  // namespace tvm_sched::cuda_kernels
