// The object "tvm_sched.ClusterSearch": a cluster, made once, with the searches that place chains.
// Python's half is `NativeClusterSearch` in python/tvm_sched_cluster/native.py.
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/tvm_ffi.h>

#include <map>

#include "arrays.h"
#include "cluster/ants.h"
#include "cluster/chain.h"
#include "cluster/embed.h"
#include "cluster/link_costs.h"

namespace tvm_sched {
namespace {

namespace ffi = tvm::ffi;
using cluster::Chain;
using cluster::Cluster;
using cluster::Embedding;
using cluster::KindId;

void StopOnSignal() {
  if (TVMFFIEnvCheckSignals() != 0) throw ffi::EnvErrorAlreadySet();
}

/*! \brief The rows of a matrix of `columns` columns. */
std::vector<std::span<int64_t>> Rows(const char* name, const ffi::TensorView& table,
                                     size_t columns) {
  const std::span<int64_t> all = Elements(name, table);
  TVM_FFI_CHECK(columns > 0 && all.size() % columns == 0, ValueError)
      << name << " has " << all.size() << " elements, not rows of " << columns;
  std::vector<std::span<int64_t>> rows;
  for (size_t at = 0; at < all.size(); at += columns) rows.push_back(all.subspan(at, columns));
  return rows;
}

int32_t Index(const char* name, int64_t value, size_t size) {
  TVM_FFI_CHECK(value >= 0 && value < static_cast<int64_t>(size), IndexError)
      << name << " " << value << " of " << size;
  return static_cast<int32_t>(value);
}

ffi::Tensor RowOf(const std::vector<int64_t>& values) {
  ffi::Tensor row = NewTensor({1, std::ssize(values)});
  std::copy(values.begin(), values.end(), static_cast<int64_t*>(row.data_ptr()));
  return row;
}

/*! \brief Stages, cycle, latency, pools, ends, then for each circuit its number of links and these.
 */
void Append(const Embedding& embedding, std::vector<int64_t>* row) {
  row->push_back(std::ssize(embedding.pools));
  row->push_back(embedding.split.cycle.count);
  row->push_back(embedding.split.latency.count);
  row->insert(row->end(), embedding.pools.begin(), embedding.pools.end());
  row->insert(row->end(), embedding.split.ends.begin(), embedding.split.ends.end());
  for (const cluster::Route& route : embedding.routes) {
    row->push_back(std::ssize(route.links));
    row->insert(row->end(), route.links.begin(), route.links.end());
  }
}

class ClusterSearchObj : public ffi::Object {
 public:
  explicit ClusterSearchObj(Cluster made) : cluster_(std::move(made)) {}

  int64_t AddChain(ffi::TensorView times, ffi::TensorView memory, ffi::TensorView input,
                   int64_t cycle_limit, int64_t latency_limit) {
    Chain chain;
    const std::span<int64_t> inputs = Elements("input", input);
    const size_t n = inputs.size();
    const std::span<int64_t> sizes = Elements("memory", memory, n);
    TVM_FFI_CHECK(n > 0, ValueError) << "a chain has no blocks";
    chain.memory_before.push_back({0});
    for (size_t b = 0; b < n; ++b) {
      chain.memory_before.push_back(chain.memory_before[b] + cluster::Bytes{sizes[b]});
      chain.input.push_back({inputs[b]});
    }
    for (const std::span<int64_t> row : Rows("times", times, n)) {
      std::vector<cluster::Nanoseconds>& sums = chain.time_before.emplace_back();
      sums.push_back({0});
      for (size_t b = 0; b < n; ++b) sums.push_back(sums[b] + cluster::Nanoseconds{row[b]});
    }
    TVM_FFI_CHECK(chain.time_before.size() == cluster_.kinds.size(), ValueError)
        << "times has " << chain.time_before.size() << " rows for " << cluster_.kinds.size()
        << " kinds";
    chain.cycle_limit = {cycle_limit};
    chain.latency_limit = {latency_limit};
    chains_.push_back(std::move(chain));
    return std::ssize(chains_) - 1;
  }

  /*! \brief A row for each mix: its GPUs of each kind, cycle, latency. */
  ffi::Tensor Mixes(int64_t chain, ffi::TensorView gpus, int64_t stages, int64_t most) const {
    const size_t kinds = cluster_.kinds.size();
    const std::vector<cluster::Mix> mixes =
        cluster::Mixes(cluster_, At(chain), Elements("gpus", gpus, kinds),
                       static_cast<size_t>(stages), static_cast<size_t>(most), StopOnSignal);
    ffi::Tensor table = NewTensor({std::ssize(mixes), static_cast<int64_t>(kinds) + 2});
    auto* cell = static_cast<int64_t*>(table.data_ptr());
    for (const cluster::Mix& mix : mixes) {
      for (int32_t count : mix.gpus) *cell++ = count;
      *cell++ = mix.cycle.count;
      *cell++ = mix.latency.count;
    }
    return table;
  }

  /*!
   * \brief Position of the first mix that can be embedded in what is free, then its embedding of
   * fewest hops among the orders of its kinds; an empty row where none can.
   */
  ffi::Tensor Embed(int64_t chain, ffi::TensorView mixes, ffi::TensorView gpus,
                    ffi::TensorView fibres) {
    const cluster::Residual residual = Free(gpus, fibres);
    cluster::Embedder embedder(cluster_, residual);
    const auto rows = Rows("mixes", mixes, cluster_.kinds.size());
    std::vector<int64_t> answer;
    for (size_t m = 0; m < rows.size() && answer.empty(); ++m) {
      StopOnSignal();
      std::optional<Embedding> best;
      for (const std::vector<KindId>& order : OrdersOf(chain, rows[m])) {
        std::optional<Embedding> made = embedder.Embed(At(chain), order);
        if (made && (!best || made->Hops() < best->Hops())) best = std::move(made);
      }
      if (!best) continue;
      answer.push_back(static_cast<int64_t>(m));
      Append(*best, &answer);
    }
    return RowOf(answer);
  }

  ffi::Tensor Ants(int64_t chain, ffi::TensorView gpus, ffi::TensorView fibres,
                   ffi::TensorView counts, double decrease, double increase,
                   double pheromone_weight, double cost_weight, double initial) {
    const std::span<int64_t> n = Elements("counts", counts, 5);
    cluster::AntSettings settings;
    settings.agents = static_cast<size_t>(n[0]);
    settings.generations = static_cast<size_t>(n[1]);
    settings.least_stages = static_cast<size_t>(n[2]);
    settings.most_stages = static_cast<size_t>(n[3]);
    settings.seed = static_cast<uint64_t>(n[4]);
    settings.decrease = decrease;
    settings.increase = increase;
    settings.pheromone_weight = pheromone_weight;
    settings.cost_weight = cost_weight;
    settings.initial = initial;
    if (!link_costs_) link_costs_.emplace(cluster_);
    const std::optional<Embedding> found = cluster::SendAnts(
        cluster_, *link_costs_, Free(gpus, fibres), At(chain), settings, StopOnSignal);
    std::vector<int64_t> answer;
    if (found) Append(*found, &answer);
    return RowOf(answer);
  }

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.ClusterSearch", ClusterSearchObj, ffi::Object);

 private:
  const Chain& At(int64_t chain) const {
    return chains_[static_cast<size_t>(Index("chain", chain, chains_.size()))];
  }

  cluster::Residual Free(const ffi::TensorView& gpus, const ffi::TensorView& fibres) const {
    const std::span<int64_t> g = Elements("gpus", gpus, cluster_.pools.size()),
                             f = Elements("fibres", fibres, cluster_.links.size());
    return {{g.begin(), g.end()}, {f.begin(), f.end()}};
  }

  const std::vector<std::vector<KindId>>& OrdersOf(int64_t chain, std::span<int64_t> mix) {
    std::vector<int32_t> counts;
    int64_t sum = 0;
    for (int64_t count : mix) {
      counts.push_back(Index("number of GPUs", count, At(chain).blocks() + 1));
      sum += count;
    }
    TVM_FFI_CHECK(sum > 0, ValueError) << "a mix has no GPU";
    auto [at, fresh] = orders_.try_emplace({chain, counts});
    if (fresh) at->second = cluster::RunOrders(cluster_, At(chain), counts);
    return at->second;
  }

  const Cluster cluster_;
  std::vector<Chain> chains_;
  std::optional<cluster::LinkCosts> link_costs_;
  std::map<std::pair<int64_t, std::vector<int32_t>>, std::vector<std::vector<KindId>>> orders_;
};

/*!
 * \brief Rows: kinds (FLOP/s, bytes), pools (switch, kind, rack, delay, bytes/s), switch delays,
 * links (switch, switch, delay, bytes/s).
 */
ffi::ObjectRef MakeClusterSearch(ffi::TensorView kinds, ffi::TensorView pools,
                                 ffi::TensorView switches, ffi::TensorView links) {
  Cluster made;
  for (const std::span<int64_t> row : Rows("kinds", kinds, 2)) {
    made.kinds.push_back({static_cast<double>(row[0]), {row[1]}});
  }
  for (int64_t delay : Elements("switches", switches)) made.switch_delay.push_back({delay});
  for (const std::span<int64_t> row : Rows("pools", pools, 5)) {
    TVM_FFI_CHECK(row[2] >= 0 && row[4] > 0, ValueError)
        << "pool with rack " << row[2] << ", " << row[4] << " bytes a second";
    made.pools.push_back({Index("switch", row[0], made.switches()),
                          Index("kind", row[1], made.kinds.size()),
                          static_cast<int32_t>(row[2]),
                          {row[3]},
                          {row[4]}});
  }
  for (const std::span<int64_t> row : Rows("links", links, 4)) {
    TVM_FFI_CHECK(row[3] > 0, ValueError) << "link with " << row[3] << " bytes a second";
    made.links.push_back(
        {{Index("switch", row[0], made.switches()), Index("switch", row[1], made.switches())},
         {row[2]},
         {row[3]}});
  }
  cluster::Finish(made);
  return ffi::ObjectRef(ffi::make_object<ClusterSearchObj>(std::move(made)));
}

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = ffi::reflection;
  refl::ObjectDef<ClusterSearchObj>(refl::init(false))
      .def_static("make", MakeClusterSearch)
      .def("add_chain", &ClusterSearchObj::AddChain)
      .def("mixes", &ClusterSearchObj::Mixes)
      .def("embed", &ClusterSearchObj::Embed)
      .def("ants", &ClusterSearchObj::Ants);
}

}  // namespace
}  // namespace tvm_sched
