// The object "tvm_sched.ClusterSearch": a cluster, made once, with the searches that place chains;
// with the objects that name their settings and answers.
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/tvm_ffi.h>

#include <map>

#include "cluster/ants.h"
#include "cluster/chain.h"
#include "cluster/embed.h"
#include "cluster/link_costs.h"
#include "ffi/arrays.h"
#include "ffi/records.h"
#include "runtime/throw.h"

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

/// The rows of a matrix of `columns` columns.
std::vector<std::span<std::int64_t>> Rows(const char* name, const Integers& table,
                                          std::size_t columns) {
  const std::span<std::int64_t> all = Elements(name, table);
  TVM_SCHED_CHECK(columns > 0 && all.size() % columns == 0, ValueError)
      << name << " has " << all.size() << " elements, not rows of " << columns;
  std::vector<std::span<std::int64_t>> rows;
  for (std::size_t at = 0; at < all.size(); at += columns) rows.push_back(all.subspan(at, columns));
  return rows;
}

std::int32_t Index(const char* name, std::int64_t value, std::size_t size) {
  TVM_SCHED_CHECK(value >= 0 && value < static_cast<std::int64_t>(size), IndexError)
      << name << " " << value << " of " << size;
  return static_cast<std::int32_t>(value);
}

/// "tvm_sched.ChainLimits": the longest cycle and latency that a chain may have.
class ChainLimitsObj : public ffi::Object {
 public:
  std::int64_t cycle_ns = 0, latency_ns = 0;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.ChainLimits", ChainLimitsObj, ffi::Object);
};

/// "tvm_sched.MixTable": mixes of GPUs that can serve a chain.
class MixTableObj : public ffi::Object {
 public:
  ffi::Tensor gpus;  // of each mix and kind
  ffi::Tensor cycle_ns, latency_ns;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.MixTable", MixTableObj, ffi::Object);
};

/// "tvm_sched.ChainEmbedding": where the stages of a chain run.
class ChainEmbeddingObj : public ffi::Object {
 public:
  std::int64_t mix = -1;                        // its row among the mixes that were given
  ffi::Array<std::int64_t> pools;               // of each stage
  ffi::Array<std::int64_t> ends;                // one after the last block of each stage
  ffi::Array<ffi::Array<std::int64_t>> routes;  // links from each stage to the next one
  std::int64_t cycle_ns = 0, latency_ns = 0;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.ChainEmbedding", ChainEmbeddingObj, ffi::Object);
};

/// "tvm_sched.AntSettings": see `cluster::AntSettings`.
class AntSettingsObj : public ffi::Object {
 public:
  std::int64_t agents = 1, generations = 1;
  std::int64_t least_stages = 1, most_stages = 0;
  std::int64_t seed = 0;
  double decrease = 0, increase = 0;
  double pheromone_weight = 0, cost_weight = 0;
  double initial = 0;
  bool access_links = false, free_walks = false;
  bool sub_agents = false, pool_links = false, pool_choice = false;
  bool falling_costs = false, first_rise = false, fastest = false;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.AntSettings", AntSettingsObj, ffi::Object);
};

template <typename Values>
ffi::Array<std::int64_t> ArrayOf(const Values& values) {
  ffi::Array<std::int64_t> array;
  for (const auto value : values) array.push_back(static_cast<std::int64_t>(value));
  return array;
}

ffi::Arc<ChainEmbeddingObj> EmbeddingOf(const Embedding& embedding, std::int64_t mix) {
  const auto result = ffi::make_arc<ChainEmbeddingObj>();
  result->mix = mix;
  result->pools = ArrayOf(embedding.pools);
  result->ends = ArrayOf(embedding.split.ends);
  for (const cluster::Route& route : embedding.routes) {
    result->routes.push_back(ArrayOf(route.links));
  }
  result->cycle_ns = embedding.split.cycle.count;
  result->latency_ns = embedding.split.latency.count;
  return result;
}

class ClusterSearchObj : public ffi::Object {
 public:
  explicit ClusterSearchObj(Cluster made) : cluster_(std::move(made)) {}

  static ffi::Arc<ClusterSearchObj> Make(const NamedValues::Values& arrays);

  /// Keeps a chain of blocks; returns its number. `times` has a row for each kind.
  std::int64_t AddChain(Integers times, Integers memory, Integers input,
                        const ChainLimitsObj* limits) {
    Chain chain;
    const std::span<std::int64_t> inputs = Elements("input", input);
    const std::size_t n = inputs.size();
    const std::span<std::int64_t> sizes = Elements("memory", memory, n);
    TVM_SCHED_CHECK(n > 0, ValueError) << "a chain has no blocks";
    chain.memory_before.push_back({0});
    for (std::size_t b = 0; b < n; ++b) {
      chain.memory_before.push_back(chain.memory_before[b] + cluster::Bytes{sizes[b]});
      chain.input.push_back({inputs[b]});
    }
    for (const std::span<std::int64_t> row : Rows("times", times, n)) {
      std::vector<cluster::Nanoseconds>& sums = chain.time_before.emplace_back();
      sums.push_back({0});
      for (std::size_t b = 0; b < n; ++b) sums.push_back(sums[b] + cluster::Nanoseconds{row[b]});
    }
    TVM_SCHED_CHECK(chain.time_before.size() == cluster_.kinds.size(), ValueError)
        << "times has " << chain.time_before.size() << " rows for " << cluster_.kinds.size()
        << " kinds";
    chain.cycle_limit = {limits->cycle_ns};
    chain.latency_limit = {limits->latency_ns};
    chains_.push_back(std::move(chain));
    return std::ssize(chains_) - 1;
  }

  /// See `cluster::Mixes`; `gpus` are those of each kind.
  ffi::Arc<MixTableObj> Mixes(std::int64_t chain, Integers gpus, std::int64_t stages,
                              std::int64_t most_stages) const {
    const std::size_t kinds = cluster_.kinds.size();
    std::vector<cluster::Mix> mixes;
    try {
      mixes = cluster::Mixes(cluster_, At(chain), Elements("gpus", gpus, kinds),
                             static_cast<std::size_t>(stages),
                             static_cast<std::size_t>(most_stages), StopOnSignal);
    } catch (const cluster::TooManyMixes& error) {
      TVM_SCHED_THROW(ValueError) << error.what();
    }
    std::vector<cluster::Nanoseconds> cycles, latencies;
    for (const cluster::Mix& mix : mixes) {
      cycles.push_back(mix.cycle);
      latencies.push_back(mix.latency);
    }
    const auto result = ffi::make_arc<MixTableObj>();
    result->gpus = NewTable(mixes, static_cast<std::int64_t>(kinds),
                            [](const cluster::Mix& mix) { return mix.gpus; });
    result->cycle_ns = NewRowOfCounts(cycles);
    result->latency_ns = NewRowOfCounts(latencies);
    return result;
  }

  /// The first mix that can be embedded in what is free, in its embedding of fewest hops
  /// among the orders of its kinds; none where none can.
  ffi::Optional<ffi::Arc<ChainEmbeddingObj>> Embed(std::int64_t chain, Integers mixes,
                                                   Integers gpus, Integers fibres) {
    const cluster::Residual residual = Free(gpus, fibres);
    cluster::Embedder embedder(cluster_, residual);
    const auto rows = Rows("mixes", mixes, cluster_.kinds.size());
    for (std::size_t m = 0; m < rows.size(); ++m) {
      StopOnSignal();
      std::optional<Embedding> best;
      for (const std::vector<KindId>& order : OrdersOf(chain, rows[m])) {
        std::optional<Embedding> made = embedder.Embed(At(chain), order);
        if (made && (!best || made->Hops() < best->Hops())) best = std::move(made);
      }
      if (best) return EmbeddingOf(*best, static_cast<std::int64_t>(m));
    }
    return std::nullopt;
  }

  /// The embedding that ants find in what is free, if any.
  ffi::Optional<ffi::Arc<ChainEmbeddingObj>> Ants(std::int64_t chain, Integers gpus,
                                                  Integers fibres, const AntSettingsObj* given) {
    cluster::AntSettings settings;
    settings.agents = static_cast<std::size_t>(given->agents);
    settings.generations = static_cast<std::size_t>(given->generations);
    settings.least_stages = static_cast<std::size_t>(given->least_stages);
    settings.most_stages = static_cast<std::size_t>(given->most_stages);
    settings.seed = static_cast<std::uint64_t>(given->seed);
    settings.decrease = given->decrease;
    settings.increase = given->increase;
    settings.pheromone_weight = given->pheromone_weight;
    settings.cost_weight = given->cost_weight;
    settings.initial = given->initial;
    settings.access_links = given->access_links;
    settings.free_walks = given->free_walks;
    settings.sub_agents = given->sub_agents;
    settings.pool_links = given->pool_links;
    settings.pool_choice = given->pool_choice;
    settings.falling_costs = given->falling_costs;
    settings.first_rise = given->first_rise;
    settings.fastest = given->fastest;
    if (!link_costs_) link_costs_.emplace(cluster_);
    const std::optional<Embedding> found = cluster::SendAnts(
        cluster_, *link_costs_, Free(gpus, fibres), At(chain), settings, StopOnSignal);
    if (!found) return std::nullopt;
    return EmbeddingOf(*found, -1);
  }

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_sched.ClusterSearch", ClusterSearchObj, ffi::Object);

 private:
  const Chain& At(std::int64_t chain) const {
    return chains_[static_cast<std::size_t>(Index("chain", chain, chains_.size()))];
  }

  cluster::Residual Free(const Integers& gpus, const Integers& fibres) const {
    const std::span<std::int64_t> g = Elements("gpus", gpus, cluster_.pools.size()),
                                  f = Elements("fibres", fibres, cluster_.links.size());
    return {{g.begin(), g.end()}, {f.begin(), f.end()}};
  }

  const std::vector<std::vector<KindId>>& OrdersOf(std::int64_t chain,
                                                   std::span<std::int64_t> mix) {
    std::vector<std::int32_t> counts;
    std::int64_t sum = 0;
    for (std::int64_t count : mix) {
      counts.push_back(Index("number of GPUs", count, At(chain).blocks() + 1));
      sum += count;
    }
    TVM_SCHED_CHECK(sum > 0, ValueError) << "a mix has no GPU";
    auto [at, fresh] = orders_.try_emplace({chain, counts});
    if (fresh) at->second = cluster::RunOrders(cluster_, At(chain), counts);
    return at->second;
  }

  const Cluster cluster_;
  std::vector<Chain> chains_;
  std::optional<cluster::LinkCosts> link_costs_;
  std::map<std::pair<std::int64_t, std::vector<std::int32_t>>, std::vector<std::vector<KindId>>>
      orders_;
};

/// From the arrays that `ClusterSearch` in Python makes, by name: FLOP/s, bytes,
/// nanoseconds, bytes a second.
ffi::Arc<ClusterSearchObj> ClusterSearchObj::Make(const NamedValues::Values& arrays) {
  const NamedValues values("a cluster", arrays);
  Cluster made;
  const std::span<std::int64_t> flops = values.Elements("kind_flops");
  const std::span<std::int64_t> memory = values.Elements("kind_memory", flops.size());
  for (std::size_t k = 0; k < flops.size(); ++k) {
    made.kinds.push_back({static_cast<double>(flops[k]), {memory[k]}});
  }
  for (std::int64_t delay : values.Elements("switch_delay_ns"))
    made.switch_delay.push_back({delay});
  const std::span<std::int64_t> at = values.Elements("pool_switch");
  const std::span<std::int64_t> kind = values.Elements("pool_kind", at.size());
  const std::span<std::int64_t> rack = values.Elements("pool_rack", at.size());
  const std::span<std::int64_t> pool_delay = values.Elements("pool_delay_ns", at.size());
  const std::span<std::int64_t> pool_rate = values.Elements("pool_bandwidth", at.size());
  for (std::size_t p = 0; p < at.size(); ++p) {
    TVM_SCHED_CHECK(rack[p] >= 0 && pool_rate[p] > 0, ValueError)
        << "pool " << p << " has rack " << rack[p] << " and " << pool_rate[p]
        << " bytes a second; 0 or more and more than 0 are allowed";
    made.pools.push_back({Index("switch", at[p], made.switches()),
                          Index("kind", kind[p], made.kinds.size()),
                          static_cast<std::int32_t>(rack[p]),
                          {pool_delay[p]},
                          {pool_rate[p]}});
  }
  const std::span<std::int64_t> first = values.Elements("link_first_switch");
  const std::span<std::int64_t> second = values.Elements("link_second_switch", first.size());
  const std::span<std::int64_t> link_delay = values.Elements("link_delay_ns", first.size());
  const std::span<std::int64_t> link_rate = values.Elements("link_bandwidth", first.size());
  for (std::size_t l = 0; l < first.size(); ++l) {
    TVM_SCHED_CHECK(link_rate[l] > 0, ValueError)
        << "link " << l << " has " << link_rate[l] << " bytes a second; more than 0 are allowed";
    made.links.push_back(
        {{Index("switch", first[l], made.switches()), Index("switch", second[l], made.switches())},
         {link_delay[l]},
         {link_rate[l]}});
  }
  cluster::Finish(made);
  return ffi::make_arc<ClusterSearchObj>(std::move(made));
}

TVM_FFI_STATIC_INIT_BLOCK() {
  TVM_SCHED_SETTINGS(ChainLimitsObj, cycle_ns, latency_ns);
  TVM_SCHED_RESULT(MixTableObj, gpus, cycle_ns, latency_ns);
  TVM_SCHED_RESULT(ChainEmbeddingObj, mix, pools, ends, routes, cycle_ns, latency_ns);
  TVM_SCHED_SETTINGS(AntSettingsObj, agents, generations, least_stages, most_stages, seed, decrease,
                     increase, pheromone_weight, cost_weight, initial, access_links, free_walks,
                     sub_agents, pool_links, pool_choice, falling_costs, first_rise, fastest);
  TVM_SCHED_METHODS(ClusterSearchObj, (add_chain, AddChain), (mixes, Mixes), (embed, Embed),
                    (ants, Ants))
      .def_static("make", &ClusterSearchObj::Make);
}

}  // namespace
}  // namespace tvm_sched
