// Kernels that compute each row for itself: embedding, normalisation, activations.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/language/kernels.h"
#include "kernels/onednn/vector_math.h"

namespace tvm_sched::language {

using runtime::JsonCursor;

namespace {

template <typename Number = float>
Number* DataOf(const DLTensor* tensor) {
  return reinterpret_cast<Number*>(static_cast<std::byte*>(tensor->data) + tensor->byte_offset);
}

/// 1 / (1 + exp(-x)), with no number out of range on the way.
inline float Sigmoid(float x) {
  const float power = onednn::Exponential(x < 0 ? x : -x);
  return x < 0 ? power / (1 + power) : 1 / (1 + power);
}

inline float GeluTanh(float x) {
  return x * Sigmoid(1.5957691216057308f * (x + 0.044715f * x * x * x));
}

inline float Gelu(float x) { return 0.5f * x * (1 + std::erf(0.70710678118654752f * x)); }

TVM_SCHED_VERSIONS void SiluRow(float* values, std::int64_t count) {
#pragma GCC ivdep
  for (std::int64_t k = 0; k < count; ++k) values[k] = values[k] * Sigmoid(values[k]);
}

TVM_SCHED_VERSIONS void GeluTanhRow(float* values, std::int64_t count) {
#pragma GCC ivdep
  for (std::int64_t k = 0; k < count; ++k) values[k] = GeluTanh(values[k]);
}

TVM_SCHED_VERSIONS void MultiplyRow(float* values, const float* other, std::int64_t count) {
#pragma GCC ivdep
  for (std::int64_t k = 0; k < count; ++k) values[k] *= other[k];
}

TVM_SCHED_VERSIONS void ScaleRow(const float* row, const float* weight, const float* bias,
                                 float mean, float factor, float* result, std::int64_t count) {
  if (bias == nullptr) {
    for (std::int64_t k = 0; k < count; ++k) result[k] = (row[k] - mean) * factor * weight[k];
  } else {
    for (std::int64_t k = 0; k < count; ++k) {
      result[k] = (row[k] - mean) * factor * weight[k] + bias[k];
    }
  }
}

constexpr int kLanes = 16;
using Floats = onednn::VectorOf<float, kLanes>::Type;

/// Sums of (x - mean) and of its square.
TVM_SCHED_VERSIONS void Moments(const float* row, std::int64_t count, float mean, double* sum,
                                double* squares) {
  Floats first = {}, second = {}, x;
  std::int64_t k = 0;
  for (; k + kLanes <= count; k += kLanes) {
    std::memcpy(&x, row + k, sizeof x);
    x -= mean;
    first += x;
    second += x * x;
  }
  *sum = *squares = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    *sum += static_cast<double>(first[lane]);
    *squares += static_cast<double>(second[lane]);
  }
  for (; k < count; ++k) {
    const double rest = static_cast<double>(row[k]) - static_cast<double>(mean);
    *sum += rest;
    *squares += rest * rest;
  }
}

}  // namespace

Activation ReadActivation(const JsonCursor& about) {
  return static_cast<Activation>(
      about.Field("activation").Word({"none", "silu", "gelu", "gelu_tanh", "relu"}));
}

void Activate(Activation activation, float* values, std::int64_t count) {
  switch (activation) {
    case Activation::kNone:
      break;
    case Activation::kSilu:
      SiluRow(values, count);
      break;
    case Activation::kGelu:
      for (std::int64_t k = 0; k < count; ++k) values[k] = Gelu(values[k]);
      break;
    case Activation::kGeluTanh:
      GeluTanhRow(values, count);
      break;
    case Activation::kRelu:
      for (std::int64_t k = 0; k < count; ++k) values[k] = values[k] < 0 ? 0 : values[k];
      break;
  }
}

void Gated(Activation activation, const float* gate, const float* up, float* values,
           std::int64_t count) {
  std::copy_n(gate, count, values);
  Activate(activation, values, count);
  MultiplyRow(values, up, count);
}

// Inputs: numbers of tokens, packed table, and where there is a table of positions the positions
// and that table.
Kernel MakeEmbedding(const JsonCursor& about) {
  about.AllowFields({"kind", "format", "hidden", "vocab", "scale", "positions", "offset"});
  const Format format = ReadFormat(about);
  const std::int64_t hidden = about.Field("hidden").Int(1, 1 << 30);
  const std::int64_t vocab = about.Field("vocab").Int(1, 1 << 30);
  const auto scale = static_cast<float>(about.Field("scale").Number());
  const bool positions = about.Field("positions").Bool();
  const std::int64_t offset = about.Field("offset").Int(0, 1 << 20);
  return [=](const Tensors& tensors) {
    const auto* ids = DataOf<const std::int32_t>(tensors[0]);
    const Weights table = ReadWeights(format, hidden, vocab, tensors, 1);
    const std::size_t next = 1 + Weights::Operands(format);
    const std::int64_t rows = tensors[0]->shape[0];
    float* result = DataOf(tensors.back());
    for (std::int64_t r = 0; r < rows; ++r, result += hidden) {
      // A number out of range touches no foreign memory.
      const std::int64_t id = std::clamp<std::int64_t>(ids[r], 0, vocab - 1);
      for (std::int64_t h = 0; h < hidden; ++h) result[h] = table.At(h, id) * scale;
      if (!positions) continue;
      const std::int64_t last = tensors[next + 1]->shape[0] - 1;
      const std::int64_t place =
          std::clamp<std::int64_t>(DataOf<const std::int32_t>(tensors[next])[r] + offset, 0, last);
      const float* learned = DataOf<const float>(tensors[next + 1]) + place * hidden;
      for (std::int64_t h = 0; h < hidden; ++h) result[h] += learned[h];
    }
  };
}

// Inputs: rows, weight, perhaps bias, perhaps a residual that is added.
Kernel MakeNorm(const JsonCursor& about) {
  about.AllowFields({"kind", "norm", "epsilon", "bias", "residual"});
  const bool layer = about.Field("norm").Word({"rms", "layer"}) == 1;
  const double epsilon = about.Field("epsilon").Number();
  const bool bias = about.Field("bias").Bool(), residual = about.Field("residual").Bool();
  return [=](const Tensors& tensors) {
    const std::int64_t rows = tensors[0]->shape[0], width = tensors[0]->shape[1];
    const auto normalize = [&](int r) {
      const float* row = DataOf<const float>(tensors[0]) + r * width;
      float* result = DataOf(tensors.back()) + r * width;
      double sum = 0, squares = 0, mean = 0;
      if (layer) {
        Moments(row, width, 0, &sum, &squares);
        mean = sum / static_cast<double>(width);
      }
      Moments(row, width, static_cast<float>(mean), &sum, &squares);
      const double factor = 1 / std::sqrt(squares / static_cast<double>(width) + epsilon);
      ScaleRow(row, DataOf<const float>(tensors[1]),
               bias ? DataOf<const float>(tensors[2]) : nullptr, static_cast<float>(mean),
               static_cast<float>(factor), result, width);
      if (!residual) return;
      const float* before = DataOf<const float>(tensors[bias ? 3 : 2]) + r * width;
      for (std::int64_t k = 0; k < width; ++k) result[k] += before[k];
    };
    if (rows * width < 1 << 14) {
      for (int r = 0; r < rows; ++r) normalize(r);
    } else {
      Loop(static_cast<int>(rows), normalize);
    }
  };
}

// Input: rows of gate and up beside each other; or with "scalar" rows, and a number for each row by
// whose sigmoid it is multiplied before it is added to a residual.
Kernel MakeGate(const JsonCursor& about) {
  about.AllowFields({"kind", "activation", "scalar"});
  const Activation activation = ReadActivation(about);
  const bool scalar = about.Field("scalar").Bool();
  return [=](const Tensors& tensors) {
    const std::int64_t rows = tensors.back()->shape[0], width = tensors.back()->shape[1];
    const auto gate = [&](int r) {
      float* result = DataOf(tensors.back()) + r * width;
      if (scalar) {
        const float factor = Sigmoid(DataOf<const float>(tensors[1])[r]);
        const float* row = DataOf<const float>(tensors[0]) + r * width;
        const float* before = DataOf<const float>(tensors[2]) + r * width;
        for (std::int64_t k = 0; k < width; ++k) result[k] = before[k] + factor * row[k];
        return;
      }
      const float* row = DataOf<const float>(tensors[0]) + r * 2 * width;
      Gated(activation, row, row + width, result, width);
    };
    if (rows * width < 1 << 14) {
      for (int r = 0; r < rows; ++r) gate(r);
    } else {
      Loop(static_cast<int>(rows), gate);
    }
  };
}

// Inputs: rows, and which of them; the result has these.
Kernel MakeRows(const JsonCursor& about) {
  about.AllowFields({"kind"});
  return [](const Tensors& tensors) {
    const std::int64_t count = tensors[1]->shape[0], width = tensors[0]->shape[1];
    for (std::int64_t k = 0; k < count; ++k) {
      const std::int64_t row = std::clamp<std::int64_t>(DataOf<const std::int32_t>(tensors[1])[k],
                                                        0, tensors[0]->shape[0] - 1);
      std::copy_n(DataOf<const float>(tensors[0]) + row * width, width,
                  DataOf(tensors.back()) + k * width);
    }
  };
}

// Inputs: tensors of one shape, which are added from the first to the last.
Kernel MakeAdd(const JsonCursor& about) {
  about.AllowFields({"kind"});
  return [](const Tensors& tensors) {
    const std::int64_t count = tensors.back()->shape[0] * tensors.back()->shape[1];
    float* result = DataOf(tensors.back());
    std::copy_n(DataOf<const float>(tensors[0]), count, result);
    for (std::size_t each = 1; each + 1 < tensors.size(); ++each) {
      const float* other = DataOf<const float>(tensors[each]);
      for (std::int64_t k = 0; k < count; ++k) result[k] += other[k];
    }
  };
}

// Inputs: tensors with as many rows, whose columns stand beside each other in the result.
Kernel MakeJoin(const JsonCursor& about) {
  about.AllowFields({"kind"});
  return [](const Tensors& tensors) {
    const std::int64_t all = tensors.back()->shape[1];
    float* result = DataOf(tensors.back());
    for (std::size_t each = 0; each + 1 < tensors.size(); ++each) {
      const std::int64_t width = tensors[each]->shape[1];
      for (std::int64_t r = 0; r < tensors.back()->shape[0]; ++r) {
        std::copy_n(DataOf<const float>(tensors[each]) + r * width, width, result + r * all);
      }
      result += width;
    }
  };
}

}  // namespace tvm_sched::language
