// Which of a search's moves is tried next.
#ifndef TVM_SCHED_SEARCH_CHOOSE_MOVE_H_
#define TVM_SCHED_SEARCH_CHOOSE_MOVE_H_

#include <array>
#include <cstddef>

namespace tvm_sched::search {

/// Draws a row's `move` from a table, as often as `weight`, one of the row's members, says.
/// \param below Draws a number below its argument: the sum of the weights, which is positive.
template <class Row, std::size_t rows, class Draw>
auto ChooseMove(const std::array<Row, rows>& table, int Row::* weight, const Draw& below) {
  int total = 0;
  for (const Row& row : table) total += row.*weight;
  auto drawn = static_cast<int>(below(static_cast<std::size_t>(total)));
  std::size_t row = 0;
  while ((drawn -= table[row].*weight) >= 0) ++row;
  return table[row].move;
}

}  // namespace tvm_sched::search

#endif  // TVM_SCHED_SEARCH_CHOOSE_MOVE_H_
