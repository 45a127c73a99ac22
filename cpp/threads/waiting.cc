#include "threads/waiting.h"

#include <elf.h>
#include <link.h>
#include <oneapi/tbb/task_arena.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>

namespace tvm_sched::threads {

namespace {

using Clock = std::chrono::steady_clock;

/// How long a thread that waits pauses before it yields. TBB's workers sleep after 1 ms without
/// work; what takes longer is a thread that holds a lock and needs a core.
constexpr auto kPauseTime = std::chrono::milliseconds(1);
/// A call pauses for this part of what its wait took so far: TBB looks for work between calls, so a
/// thread sees new work late by at most that, and in short waits at once.
constexpr int kPart = 16;
/// The longest pause of a call. TBB sleeps after 100 calls in a wait: here after 0.3 to 1 ms.
constexpr auto kLongestCall = std::chrono::microseconds(20);
/// Calls further apart than this belong to different waits: in between there was work.
constexpr auto kGap = std::chrono::microseconds(5);

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

/// What libtbb calls in place of sched_yield.
int PauseOrYield() {
  thread_local Clock::time_point begin, last;
  Clock::time_point now = Clock::now();
  if (now - last > kGap) begin = now;
  if (now - begin > kPauseTime) {
    sched_yield();
    last = Clock::now();
    return 0;
  }
  const Clock::time_point end =
      now + std::min<Clock::duration>((now - begin) / kPart, kLongestCall);
  do {
    Pause();
    now = Clock::now();
  } while (now < end);
  last = now;
  return 0;
}

/// The tables of a loaded library, as its dynamic section names them.
struct Tables {
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  const ElfW(Rela) * entries = nullptr;
  std::size_t bytes = 0;
  bool with_addends = false;
};

Tables TablesOf(const ElfW(Dyn) * dynamic) {
  Tables result;
  for (; dynamic->d_tag != DT_NULL; ++dynamic) {
    const ElfW(Addr) address = dynamic->d_un.d_ptr;
    switch (dynamic->d_tag) {
      case DT_SYMTAB:
        result.symbols = reinterpret_cast<const ElfW(Sym)*>(address);
        break;
      case DT_STRTAB:
        result.names = reinterpret_cast<const char*>(address);
        break;
      case DT_JMPREL:
        result.entries = reinterpret_cast<const ElfW(Rela)*>(address);
        break;
      case DT_PLTRELSZ:
        result.bytes = dynamic->d_un.d_val;
        break;
      case DT_PLTREL:
        result.with_addends = dynamic->d_un.d_val == DT_RELA;
        break;
      default:
        break;
    }
  }
  return result;
}

/// Pages that the dynamic linker made read-only once it had filled them: whole ones.
struct ReadOnly {
  ElfW(Addr) begin = 0, end = 0;
  bool Has(ElfW(Addr) place) const { return begin <= place && place < end; }
};

ElfW(Addr) PageOf(ElfW(Addr) address) {
  return address & -static_cast<ElfW(Addr)>(sysconf(_SC_PAGESIZE));
}

bool Replace(void** entry, void* function, bool read_only) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  auto* const start = reinterpret_cast<void*>(PageOf(reinterpret_cast<ElfW(Addr)>(entry)));
  if (read_only && mprotect(start, page, PROT_READ | PROT_WRITE) != 0) return false;
  __atomic_store_n(entry, function, __ATOMIC_RELEASE);
  if (read_only) mprotect(start, page, PROT_READ);
  return true;
}

/// For the library that holds an address, whose entries for sched_yield are replaced.
struct Search {
  ElfW(Addr) inside;
  bool replaced = false;
};

int Visit(dl_phdr_info* library, std::size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  const ElfW(Dyn)* dynamic = nullptr;
  ReadOnly protected_pages;
  bool found = false;
  for (int k = 0; k < library->dlpi_phnum; ++k) {
    const ElfW(Phdr) & part = library->dlpi_phdr[k];
    const ElfW(Addr) begin = library->dlpi_addr + part.p_vaddr, end = begin + part.p_memsz;
    if (part.p_type == PT_LOAD) found = found || (begin <= search.inside && search.inside < end);
    if (part.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(begin);
    if (part.p_type == PT_GNU_RELRO) protected_pages = {PageOf(begin), PageOf(end)};
  }
  if (!found) return 0;
  const Tables tables = dynamic == nullptr ? Tables{} : TablesOf(dynamic);
  if (!tables.symbols || !tables.names || !tables.entries || !tables.with_addends) return 1;
  for (std::size_t k = 0; k < tables.bytes / sizeof(ElfW(Rela)); ++k) {
    const ElfW(Rela) & entry = tables.entries[k];
    const char* name = tables.names + tables.symbols[ELF64_R_SYM(entry.r_info)].st_name;
    if (std::strcmp(name, "sched_yield") != 0) continue;
    const ElfW(Addr) place = library->dlpi_addr + entry.r_offset;
    void** const slot = reinterpret_cast<void**>(place);
    void* const ours = reinterpret_cast<void*>(&PauseOrYield);
    const bool done = *slot == ours || Replace(slot, ours, protected_pages.Has(place));
    search.replaced = search.replaced || done;
  }
  return 1;  // no other library holds the address
}

}  // namespace

bool PauseBeforeYielding() {
  const auto function = static_cast<int (*)(const tbb::detail::d1::task_arena_base*)>(
      &tbb::detail::r1::max_concurrency);
  Search search{reinterpret_cast<ElfW(Addr)>(function)};
  dl_iterate_phdr(&Visit, &search);
  return search.replaced;
}

}  // namespace tvm_sched::threads
