// Whether a GPU reads the memory of another one right, and whether a copy is faster so than through
// the host: tried with real copies when both are first opened, since drivers promise peer access
// also where a machine's firmware spoils the bytes (IOMMU, ACS).
#ifndef TVM_SCHED_RUNTIME_CUDA_PEERS_H_
#define TVM_SCHED_RUNTIME_CUDA_PEERS_H_

#include "runtime/units.h"

namespace tvm_sched::runtime::cuda {

class Devices;

/// What the environment variable TVM_SCHED_PEERS says of GPUs whose driver promises peer access.
enum class PeerPolicy {
  kTry,    // "try", the default: used where bytes arrive, for copies where these are not slower
  kTrust,  // "trust": used without being tried
  kNever   // "never": not used
};
/// Throws std::invalid_argument for another word.
PeerPolicy PeerPolicyFromEnvironment();

/// How a GPU reaches the memory of another one.
struct PeerAccess {
  bool right = true;                 // bytes arrive as they are
  bool straight = true;              // and a copy is not clearly slower than through the host
  double rate = 0, staged_rate = 0;  // bytes a second that were measured, or 0
};

/// Copy from a device's GPU to another one's, both opened and with peer access, compare the bytes,
/// and time it beside the two copies that go through the host. The answer is kept for the process;
/// wrong bytes are told on standard error, once. Without room for the copies the driver is trusted.
/// Throws CudaError where a copy is refused.
PeerAccess TryPeer(const Devices& devices, int receiver, int sender);
/// What was found before; of GPUs that were not tried, that nothing is wrong.
PeerAccess KnownPeer(const Devices& devices, int receiver, int sender);

}  // namespace tvm_sched::runtime::cuda

#endif  // TVM_SCHED_RUNTIME_CUDA_PEERS_H_
