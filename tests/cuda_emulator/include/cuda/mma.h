// In place of NVIDIA's mma.h: matrices of a warp, whose elements lie with the lanes in an order
// that nobody may rely on. cuda_emulator/device.h is there already.
#ifndef TVM_SCHED_TESTS_CUDA_EMULATOR_MMA_H_
#define TVM_SCHED_TESTS_CUDA_EMULATOR_MMA_H_

namespace nvcuda::wmma {

struct row_major {};
struct col_major {};
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int m, int n, int k, class T, class Layout = void>
struct fragment {
  static constexpr int kRows = std::is_same_v<Use, matrix_b> ? k : m;
  static constexpr int kColumns = std::is_same_v<Use, matrix_a> ? k : n;
  static constexpr int num_elements = kRows * kColumns / int(cuda_emulator::kLanes);
  T x[num_elements];

  /// The element of the matrix that is element i of this lane.
  static int Row(int lane, int i) { return (lane * num_elements + i) / kColumns; }
  static int Column(int lane, int i) { return (lane * num_elements + i) % kColumns; }
};

namespace detail {

inline int Lane() { return static_cast<int>(cuda_emulator::Here().lane); }

/// Pointers have to lie at multiples of 32 bytes, rows at multiples of 16.
template <class T>
void Check(const T* address, unsigned stride) {
  const bool aligned =
      reinterpret_cast<std::uintptr_t>(address) % 32 == 0 && stride * sizeof(T) % 16 == 0;
  if (!aligned)
    cuda_emulator::TheDevice().fault(cuda_emulator::kMisaligned, "wmma: an address or stride");
  int nothing = 0;
  cuda_emulator::TheDevice().exchange(0, ~0u, cuda_emulator::Meet, &nothing);
}

template <class F, class T>
void Load(F& to, const T* from, unsigned stride, bool rows) {
  Check(from, stride);
  for (int i = 0; i < F::num_elements; ++i) {
    const unsigned row = F::Row(Lane(), i), column = F::Column(Lane(), i);
    to.x[i] = from[rows ? row * stride + column : column * stride + row];
  }
}

template <class D, class A, class B, class C>
struct Operands {
  D* d;
  const A* a;
  const B* b;
  const C* c;
};

template <class D, class A, class B, class C>
void Multiply(void** lanes) {
  float left[A::kRows][A::kColumns], right[B::kRows][B::kColumns];
  for (int lane = 0; lane < int(cuda_emulator::kLanes); ++lane) {
    const auto& mine = *static_cast<Operands<D, A, B, C>*>(lanes[lane]);
    for (int i = 0; i < A::num_elements; ++i)
      left[A::Row(lane, i)][A::Column(lane, i)] = float(mine.a->x[i]);
    for (int i = 0; i < B::num_elements; ++i)
      right[B::Row(lane, i)][B::Column(lane, i)] = float(mine.b->x[i]);
  }
  for (int lane = 0; lane < int(cuda_emulator::kLanes); ++lane) {
    const auto& mine = *static_cast<Operands<D, A, B, C>*>(lanes[lane]);
    for (int i = 0; i < D::num_elements; ++i) {
      float sum = float(mine.c->x[i]);
      for (int l = 0; l < A::kColumns; ++l)
        sum += left[D::Row(lane, i)][l] * right[l][D::Column(lane, i)];
      mine.d->x[i] = sum;
    }
  }
}

}  // namespace detail

template <class Use, int m, int n, int k, class T, class Layout>
void load_matrix_sync(fragment<Use, m, n, k, T, Layout>& to, const T* from, unsigned stride) {
  detail::Load(to, from, stride, std::is_same_v<Layout, row_major>);
}
template <int m, int n, int k, class T>
void load_matrix_sync(fragment<accumulator, m, n, k, T>& to, const T* from, unsigned stride,
                      layout_t layout) {
  detail::Load(to, from, stride, layout == mem_row_major);
}
template <int m, int n, int k, class T>
void store_matrix_sync(T* to, const fragment<accumulator, m, n, k, T>& from, unsigned stride,
                       layout_t layout) {
  using F = fragment<accumulator, m, n, k, T>;
  detail::Check(to, stride);
  for (int i = 0; i < F::num_elements; ++i) {
    const unsigned row = F::Row(detail::Lane(), i), column = F::Column(detail::Lane(), i);
    to[layout == mem_row_major ? row * stride + column : column * stride + row] = from.x[i];
  }
}
template <class F, class T>
void fill_fragment(F& to, T value) {
  for (auto& element : to.x) element = value;
}
template <class D, class A, class B, class C>
void mma_sync(D& d, const A& a, const B& b, const C& c) {
  detail::Operands<D, A, B, C> mine{&d, &a, &b, &c};
  cuda_emulator::TheDevice().exchange(0, ~0u, detail::Multiply<D, A, B, C>, &mine);
}

}  // namespace nvcuda::wmma

#endif  // TVM_SCHED_TESTS_CUDA_EMULATOR_MMA_H_
