// Attention by cuDNN's graph interface, beside the kernel of an image.
#ifndef TVM_SCHED_KERNELS_CUDA_ATTENTION_H_
#define TVM_SCHED_KERNELS_CUDA_ATTENTION_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/candidates.h"
#include "runtime/json_cursor.h"

namespace tvm_sched::cuda_kernels {

/// softmax(scale * q @ k.T) @ v. Of each tensor: the offset, and the elements from one batch entry,
/// head and row to the next; rows are contiguous.
struct AttentionDescription {
  std::string dtype;
  std::int64_t batch = 1, heads = 1, shared_heads = 1;  // of queries, and of keys and values
  std::int64_t rows = 1, keys = 1, width = 1, out = 1;
  float scale = 1;
  bool causal = false;
  int shift = 0;  // from a row to the last key that it sees
  using Place = std::array<std::int64_t, 4>;
  Place query{}, key{}, value{}, result{};
};

/// Reads the fields above. Throws FormatError.
AttentionDescription ReadAttention(const runtime::JsonCursor& item);

/// The same for equal problems.
std::string KeyOf(const AttentionDescription& description);

/// Plans of cuDNN for the tensors query, key, value and result; empty where it has none.
std::vector<std::unique_ptr<Candidate>> AttentionCandidates(const AttentionDescription& description,
                                                            Stream stream);

/// Plans for a GPU of these properties, as text; needs no GPU.
std::vector<std::string> CompileAttention(const AttentionDescription& description,
                                          const std::string& properties);

}  // namespace tvm_sched::cuda_kernels

#endif  // TVM_SCHED_KERNELS_CUDA_ATTENTION_H_
