// What the fake GPUs are: attributes as the tables of the CUDA programming guide state them for an
// architecture. FAKE_CUDA_ARCHS ("sm_90,sm_80") says which GPU is which; the last is that of all
// others.
#include "devices.h"

#include <cstdlib>
#include <map>

#include "state.h"

using namespace fake_cuda;

namespace fake_cuda {

namespace {

/// Bytes of shared memory that a block may ask for, by compute capability.
int OptInSharedBytes(int arch) {
  static const std::map<int, int> kilobytes{{70, 96}, {75, 64},  {80, 163},  {86, 99},   {87, 163},
                                            {89, 99}, {90, 227}, {100, 227}, {103, 227}, {120, 99}};
  const auto found = kilobytes.find(arch);
  return (found == kilobytes.end() ? 48 : found->second) << 10;
}

}  // namespace

int ArchitectureOf(int device) {
  const char* named = std::getenv("FAKE_CUDA_ARCHS");
  std::string text = named == nullptr || *named == '\0' ? "sm_90" : named;
  for (int d = 0; d < device; ++d) {
    const std::size_t comma = text.find(',');
    if (comma == std::string::npos) break;
    text.erase(0, comma + 1);
  }
  return std::atoi(text.c_str() + 3);
}

int AttributeOf(int attribute, int device) {
  const int arch = ArchitectureOf(device);
  switch (attribute) {
    case kMaxThreadsPerBlock:
    case kMaxBlockX:
    case kMaxBlockX + 1:
      return 1024;
    case kMaxBlockX + 2:
      return 64;
    case kMaxGridX:
      return 0x7FFFFFFF;
    case kMaxGridX + 1:
    case kMaxGridX + 2:
      return 65535;
    case kSharedPerBlock:
      return 48 << 10;
    case kSharedPerBlockOptIn:
      return OptInSharedBytes(arch);
    case 10:  // threads of a warp
      return 32;
    case 16:  // multiprocessors
      return 8;
    case 13:  // kHz of the clock
      return 1'980'000;
    case 20:  // compute mode: any number of processes
      return 0;
    case 36:  // kHz of the memory's clock
      return 2'619'000;
    case 37:  // width of the memory's bus
      return 5120;
    case 38:  // bytes of the level 2 cache
      return 50 << 20;
    case 40:  // copy engines
      return 3;
    case 33:  // PCI bus; device and domain are 0
      return device + 1;
    case 34:
    case 50:
      return 0;
    case 41:  // unified addressing
      return 1;
    case 91:   // registered memory has the host's addresses
    case 113:  // and may be read-only
      return 1;
    case 75:
      return arch / 10;
    case 76:
      return arch % 10;
    default:
      return -1;
  }
}

}  // namespace fake_cuda

EXPORT int cuDeviceGetAttribute(int* value, int attribute, int device) {
  ENTER(cuDeviceGetAttribute);
  if (device < 0 || device >= TheState().devices) return 101;
  *value = AttributeOf(attribute, device);
  return *value < 0 ? kInvalidValue : kOk;
}
