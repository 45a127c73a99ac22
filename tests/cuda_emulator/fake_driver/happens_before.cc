#include "happens_before.h"

#include <algorithm>
#include <iterator>

namespace fake_cuda {

void Join(VectorClock& into, const VectorClock& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (std::size_t k = 0; k < from.size(); ++k) into[k] = std::max(into[k], from[k]);
}

void Accesses::Split(std::uintptr_t address) {
  auto after = cells_.upper_bound(address);
  if (after == cells_.begin()) return;
  auto& [begin, cell] = *std::prev(after);
  if (begin == address || cell.end <= address) return;
  Cell rest = cell;
  cell.end = address;
  cells_.emplace(address, std::move(rest));
}

void Accesses::Touch(const Range& range, const OperationRef& by, const Before& before,
                     const std::function<void(const Conflict&)>& found) {
  if (range.begin >= range.end) return;
  Split(range.begin);
  Split(range.end);
  std::uintptr_t at = range.begin;
  for (auto next = cells_.lower_bound(at); at < range.end; ++next) {
    if (next == cells_.end() || next->first > at) {
      const std::uintptr_t end =
          next == cells_.end() ? range.end : std::min(range.end, next->first);
      next = cells_.emplace_hint(next, at, Cell{end, nullptr, {}});
    }
    Cell& cell = next->second;
    const Range here{at, cell.end, range.written};
    at = cell.end;
    if (cell.write && !before(*cell.write)) found({cell.write, by, here, true});
    if (!range.written) {
      std::erase_if(cell.reads, [&](const OperationRef& read) { return before(*read); });
      cell.reads.push_back(by);
      continue;
    }
    for (const OperationRef& read : cell.reads) {
      if (!before(*read)) found({read, by, here, false});
    }
    cell.write = by;
    cell.reads.clear();
  }
}

void Accesses::Forget(std::uintptr_t begin, std::uintptr_t end) {
  Split(begin);
  Split(end);
  cells_.erase(cells_.lower_bound(begin), cells_.lower_bound(end));
}

std::vector<Range> Accesses::Ranges() const {
  std::vector<Range> ranges;
  for (const auto& [begin, cell] : cells_) {
    const bool written = cell.write != nullptr;
    if (!ranges.empty() && ranges.back().end == begin && ranges.back().written == written) {
      ranges.back().end = cell.end;
    } else {
      ranges.push_back({begin, cell.end, written});
    }
  }
  return ranges;
}

}  // namespace fake_cuda
