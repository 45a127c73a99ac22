// Whether a function that we declare for ourselves takes what the one in a vendor's header does:
// types may have other names; number, size and kind must agree.
#ifndef TVM_SCHED_TESTS_CPP_SAME_INTERFACE_H_
#define TVM_SCHED_TESTS_CPP_SAME_INTERFACE_H_

#include <type_traits>

namespace tvm_sched::testing {

template <typename A, typename B>
constexpr bool kAlike = sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B> &&
                        std::is_floating_point_v<A> == std::is_floating_point_v<B>;

template <typename Ours, typename Theirs>
struct SameInterface : std::false_type {};

template <typename R, typename... A, typename S, typename... B>
  requires(sizeof...(A) == sizeof...(B))
struct SameInterface<R (*)(A...), S (*)(B...)>
    : std::bool_constant<(kAlike<R, S> && ... && kAlike<A, B>)> {};

}  // namespace tvm_sched::testing

#endif  // TVM_SCHED_TESTS_CPP_SAME_INTERFACE_H_
