// Makes primitives from descriptions: one function for each kind.
#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>

#include "kernels/onednn/kernel.h"
#include "kernels/onednn/packing.h"
#include "kernels/onednn/post_operations.h"
#include "kernels/onednn/value_check.h"

namespace tvm_sched::onednn {

using dnnl::memory;

namespace {

using Bindings = std::vector<Prepared::Binding>;

constexpr auto kInference = dnnl::prop_kind::forward_inference;

memory::data_type TypeOf(const Operand& operand) {
  switch (operand.type) {
    case DataType::kFloat32:
      return memory::data_type::f32;
    case DataType::kBfloat16:
      return memory::data_type::bf16;
    case DataType::kInt32:
      return memory::data_type::s32;
    case DataType::kInt8:
      return memory::data_type::s8;
    default:
      return memory::data_type::u8;
  }
}

memory::desc Any(const Operand& operand) {
  return memory::desc(operand.dims, TypeOf(operand), memory::format_tag::any);
}

/// A matrix is read as it lies unless it is a parameter, which is laid out anew once.
memory::desc Matrix(const Operand& operand) {
  return operand.parameter ? Any(operand) : LayoutOf(operand);
}

/// The source of a product as it is multiplied: rounded to bfloat16 where the weights are that.
memory::desc Source(const Description& description) {
  Operand source = description.operands[0];
  if (description.operands[1].type == DataType::kBfloat16) source.type = DataType::kBfloat16;
  return LayoutOf(source);
}

dnnl::primitive_attr Attributes(const Description& description) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  attributes.set_post_ops(PostOperations(description));
  if (description.source_zero != 0) attributes.set_zero_points_mask(DNNL_ARG_SRC, 0);
  return attributes;
}

/// Called for each implementation in oneDNN's order, until it returns true.
using Visit = std::function<bool(Prepared)>;

/// What primitives have in common: a source and a result, and other operands in `bindings`. oneDNN
/// 3.2 names some implementations twice once primitives were made.
template <typename Primitive, typename Bind>
void VisitAll(const Description& d, typename Primitive::primitive_desc found, const Visit& visit,
              const Bind& bind) {
  do {
    Bindings bindings{{DNNL_ARG_SRC, 0, found.src_desc()},
                      {DNNL_ARG_DST, static_cast<int>(d.operands.size()) - 1, found.dst_desc()}};
    bind(found, &bindings);
    for (const Prepared::Binding& binding : PostBindings(d)) bindings.push_back(binding);
    if (visit({[found] { return Primitive(found); }, found.scratchpad_desc(), std::move(bindings),
               std::nullopt, found.impl_info_str()})) {
      return;
    }
  } while (found.next_impl());
}

/// Weights, and a bias where there is one: convolution and matmul.
template <typename Primitive>
void WithWeights(const Description& d, const typename Primitive::primitive_desc& found,
                 const Visit& visit) {
  VisitAll<Primitive>(d, found, visit, [&](const auto& each, Bindings* bindings) {
    bindings->push_back({DNNL_ARG_WEIGHTS, 1, each.weights_desc()});
    if (d.bias >= 0) bindings->push_back({DNNL_ARG_BIAS, d.bias, each.bias_desc()});
  });
}

/// A source and a result alone.
template <typename Primitive>
void Plain(const Description& d, const typename Primitive::primitive_desc& found,
           const Visit& visit) {
  VisitAll<Primitive>(d, found, visit, [](const auto&, Bindings*) {});
}

memory::desc Bias(const Description& d) {
  return d.bias < 0 ? memory::desc() : LayoutOf(d.operands[d.bias]);
}

/// A convolution, or a deconvolution: oneDNN wants the same of both.
template <typename Primitive>
typename Primitive::primitive_desc DescribeEither(const Description& d, dnnl::algorithm algorithm) {
  return {Engine(),       kInference,           algorithm, Source(d),  Any(d.operands[1]),
          Bias(d),        LayoutOf(d.result()), d.strides, d.dilation, d.padding_low,
          d.padding_high, Attributes(d)};
}

void Convolution(const Description& d, const Visit& visit) {
  using Primitive = dnnl::convolution_forward;
  WithWeights<Primitive>(d, DescribeEither<Primitive>(d, dnnl::algorithm::convolution_direct),
                         visit);
}

void Deconvolution(const Description& d, const Visit& visit) {
  using Primitive = dnnl::deconvolution_forward;
  WithWeights<Primitive>(d, DescribeEither<Primitive>(d, dnnl::algorithm::deconvolution_direct),
                         visit);
}

void Matmul(const Description& d, const Visit& visit) {
  WithWeights<dnnl::matmul>(
      d, {Engine(), Source(d), Matrix(d.operands[1]), Bias(d), LayoutOf(d.result()), Attributes(d)},
      visit);
}

void Pooling(const Description& d, const Visit& visit) {
  using Primitive = dnnl::pooling_forward;
  static const std::map<std::string, dnnl::algorithm> algorithms{
      {"average", dnnl::algorithm::pooling_avg_exclude_padding},
      {"average_with_padding", dnnl::algorithm::pooling_avg_include_padding}};
  const auto algorithm = algorithms.find(d.algorithm);
  if (algorithm == algorithms.end())
    throw std::invalid_argument("there is no oneDNN kernel of pooling by \"" + d.algorithm +
                                "\": compile the model again");
  const Primitive::primitive_desc found(
      Engine(), kInference, algorithm->second, LayoutOf(d.operands[0]), LayoutOf(d.result()),
      d.strides, d.kernel, d.dilation, d.padding_low, d.padding_high, Attributes(d));
  Plain<Primitive>(d, found, visit);
}

void LocalResponse(const Description& d, const Visit& visit) {
  using Primitive = dnnl::lrn_forward;
  const auto number = [&](int k) { return static_cast<float>(d.numbers.at(k)); };
  const Primitive::primitive_desc found(Engine(), kInference, dnnl::algorithm::lrn_across_channels,
                                        LayoutOf(d.operands[0]), LayoutOf(d.result()),
                                        static_cast<memory::dim>(d.numbers.at(0)), number(1),
                                        number(2), number(3), Attributes(d));
  Plain<Primitive>(d, found, visit);
}

void LayerNormalization(const Description& d, const Visit& visit) {
  using Primitive = dnnl::layer_normalization_forward;
  using Flags = dnnl::normalization_flags;
  const Primitive::primitive_desc found(Engine(), kInference, LayoutOf(d.operands[0]),
                                        LayoutOf(d.result()), static_cast<float>(d.numbers.at(0)),
                                        Flags::use_scale | Flags::use_shift, Attributes(d));
  VisitAll<Primitive>(d, found, visit, [&](const auto&, Bindings* bindings) {
    bindings->push_back({DNNL_ARG_SCALE, 1, LayoutOf(d.operands[1])});
    bindings->push_back({DNNL_ARG_SHIFT, 2, LayoutOf(d.operands[2])});
  });
}

/// The description of what oneDNN computes: of a convolution over one dimension, `windows` of which
/// are copied, the product of these.
Description WithoutLines(const Description& d, std::optional<Windows>* windows = nullptr) {
  if (d.primitive != "line_convolution") return d;
  if (d.operands[1].type != DataType::kFloat32) {
    throw std::invalid_argument("a line_convolution takes float32 tensors alone");
  }
  const Windows found(d);
  if (windows != nullptr) *windows = found;
  Description product = d;
  product.primitive = "matmul";
  product.operands[0] = {{found.rows(), found.columns()}, {found.columns(), 1}};
  return product;
}

/// The implementations of a description, as oneDNN orders them. Throws dnnl::error where it has
/// none, std::invalid_argument where there is no such kernel.
void VisitImplementations(const Description& d, const Visit& visit) {
  using Visitor = void (*)(const Description&, const Visit&);
  static const std::map<std::string, Visitor> visitors{
      {"convolution", Convolution},
      {"deconvolution", Deconvolution},
      {"matmul", Matmul},
      {"pooling", Pooling},
      {"local_response_normalization", LocalResponse},
      {"layer_normalization", LayerNormalization}};
  const auto found = visitors.find(d.primitive);
  if (found == visitors.end()) {
    throw std::invalid_argument("there is no oneDNN kernel of the kind \"" + d.primitive +
                                "\"; the artifact may be newer than this library");
  }
  found->second(d, visit);
}

}  // namespace

memory::desc LayoutOf(const Operand& operand) {
  if (!operand.layout.empty()) {
    const std::optional<memory::format_tag> tag = LayoutOfName(operand.layout);
    if (!tag) {
      throw std::invalid_argument("there is no layout \"" + operand.layout +
                                  "\" in this version of oneDNN; compile the model again");
    }
    return memory::desc(operand.dims, TypeOf(operand), *tag);
  }
  return memory::desc(operand.dims, TypeOf(operand), operand.strides);
}

std::int64_t StoredElements(const Operand& operand) {
  if (operand.layout.empty()) return operand.elements();
  return static_cast<std::int64_t>(LayoutOf(operand).get_size()) / BytesOf(operand.type);
}

std::vector<std::string> ImplementationsOf(const Description& described, int threads,
                                           std::size_t most) {
  const Description description = WithoutLines(described);
  std::vector<std::string> names;
  VisitImplementations(description, [&](Prepared each) {
    const std::string& name = each.implementation;
    if (IsReference(name)) return true;
    const bool known = std::find(names.begin(), names.end(), name) != names.end();
    if (!known && IsRight(description, threads, &each)) names.push_back(name);
    return names.size() == most;
  });
  return names;
}

std::string FirstImplementation(const Description& described, int threads) {
  const Description description = WithoutLines(described);
  std::string found;
  const auto choose = [&](const std::string& wanted) {
    VisitImplementations(description, [&](Prepared each) {
      const std::string& name = each.implementation;
      if (!wanted.empty() && name != wanted) return false;
      const bool taken =
          IsReference(name) || !IsExact(description, name) || IsRight(description, threads, &each);
      if (taken) found = name;
      return taken;
    });
  };
  if (!description.implementation.empty()) choose(description.implementation);
  if (found.empty()) choose("");
  return found;
}

Prepared Prepare(const Description& described, int threads) {
  std::optional<Windows> windows;
  const Description description = WithoutLines(described, &windows);
  std::optional<Prepared> chosen;
  const auto choose = [&](const std::string& name) {
    VisitImplementations(description, [&](Prepared each) {
      if (!name.empty() && each.implementation != name) return false;
      // One that is not exact is no kernel of ours: the caller refuses it.
      if (IsExact(description, each.implementation) && !IsRight(description, threads, &each)) {
        return false;
      }
      chosen = std::move(each);
      return true;
    });
  };
  if (!description.implementation.empty()) choose(description.implementation);
  if (!chosen) choose("");
  if (!chosen) {
    throw std::runtime_error(
        "every implementation of oneDNN computes wrong values here (tvm-sched doctor lists them); "
        "compile the model again on this machine");
  }
  chosen->windows = windows;
  return std::move(*chosen);
}

}  // namespace tvm_sched::onednn
