"""The command ``cluster replay``: policies judged over time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from tvm_sched.cli.inputs import JSON
from tvm_sched.cli.interrupt import ending_when_interrupted
from tvm_sched.cli.methods import MethodOptions, Options
from tvm_sched.cli.output import INTERRUPTED, Output
from tvm_sched.cli.registration import command
from tvm_sched_runtime.checks import require_seed
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.files import encode_document, write_atomically

from .cluster_options import ClusterOptions, Quota, ReportFile, cluster

if TYPE_CHECKING:
    from .. import ServiceRequest
    from ..admission import AdmissionRules
    from ..replay.replay_results import PodReplays, Replays
    from ..replay.simulation import ReplayOptions
    from ..replay.traces import Fault

HOME = "tvm_sched_cluster.replay.replay_results"
POD_RATIO = 1.3
"""GPUs that drawn pods ask for, of all GPUs: as in FGD's evaluation."""
FORMAT, VERSION = "tvm_sched.replay", 1


@dataclass(frozen=True, kw_only=True)
class TraceOptions:
    """Requests and failures over time."""

    requests: Annotated[
        str,
        typer.Option(
            "--requests",
            metavar="FILE|poisson",
            help="Poisson arrivals, a sequence of RAMPA's simulator (.txt), or a table (.csv) with the columns time or "
            "TIMESTAMP, and perhaps service, lifetime and name. For a CLUSTER that is a table of nodes (.csv): a table of "
            "pods, drawn until they ask for 130 % of the GPUs.",
        ),
    ]
    demand: Annotated[
        str,
        typer.Option(
            "--demand", metavar="CASE", help="Which services: same, high-throughput, low-delay or huge-model."
        ),
    ] = "same"
    offered: Annotated[
        float, typer.Option("--offered", metavar="N", help="Poisson: services that would run if all were accepted.")
    ] = 200.0
    lifetime: Annotated[
        float, typer.Option("--lifetime", metavar="SECONDS", help="Mean of the lifetimes that no file gives.")
    ] = 86400.0
    scale_lifetimes: Annotated[
        float, typer.Option("--scale-lifetimes", metavar="FACTOR", help="For the lifetimes of a file.")
    ] = 1.0
    count: Annotated[int, typer.Option("--count", metavar="N", help="Requests at most.")] = 1000
    faults: Annotated[
        Path | None, typer.Option("--faults", metavar="FILE.csv", help="Columns time, event (fail or repair) and part.")
    ] = None
    mtbf: Annotated[
        float | None, typer.Option("--mtbf", metavar="SECONDS", help="Mean time between failures of each server.")
    ] = None
    link_mtbf: Annotated[
        float | None,
        typer.Option("--link-mtbf", metavar="SECONDS", help="Of each link, with --mtbf. Default: none fail."),
    ] = None
    mttr: Annotated[float, typer.Option("--mttr", metavar="SECONDS", help="Mean time to its repair.")] = 14400.0

    def draw(self, on: ClusterOptions, seed: int) -> tuple[list[ServiceRequest], list[Fault]]:
        """Return the requests and faults of a run."""
        from .. import demand_of_services, load_cluster, load_services
        from ..replay.traces import draw_faults, poisson_requests, read_faults, read_trace

        if self.count < 1:
            raise InputError(f"--count {self.count}: a number from 1 is allowed")
        if self.faults and self.mtbf:
            raise InputError("give one of --faults FILE and --mtbf SECONDS")
        needed = self.requests == "poisson" or self.requests.endswith(".csv")
        demand = demand_of_services(self.demand, load_services(on.services)) if needed else {}
        if self.requests == "poisson":
            requests = poisson_requests(demand, self.count, self.offered, self.lifetime, seed)
        else:
            requests = read_trace(self.requests, demand, self.lifetime, self.scale_lifetimes, seed)[: self.count]
        if self.faults:
            return requests, read_faults(self.faults)
        if self.mtbf is None or not requests:
            return requests, []
        return requests, draw_faults(
            load_cluster(on.name), self.mtbf, self.mttr, requests[-1].time, seed, self.link_mtbf
        )


@dataclass(frozen=True, kw_only=True)
class OperationOptions:
    """How services load and move, and which requests are refused."""

    load_bandwidth: Annotated[
        float, typer.Option("--load-bandwidth", metavar="BYTES", help="A second, at which a GPU loads its parameters.")
    ] = 1e9
    load_times: Annotated[
        Path | None,
        typer.Option(
            "--load-times", metavar="FILE.csv", help="Draw load times from the column seconds or value (milliseconds)."
        ),
    ] = None
    defragment_every: Annotated[
        float, typer.Option("--defragment-every", metavar="SECONDS", help="Move services this often; 0: never.")
    ] = 0.0
    moves: Annotated[int, typer.Option("--moves", metavar="N", help="Most moves each time.")] = 5
    windows: Annotated[
        int, typer.Option("--windows", metavar="N", help="Parts of the time with figures of their own.")
    ] = 20
    quota: Quota = None
    slack: Annotated[
        float | None,
        typer.Option(
            "--slack", metavar="PART", help="Refuse services accepted more often than the others by this part."
        ),
    ] = None

    def settings(self, seed: int) -> ReplayOptions:
        """Return the settings of a run."""
        from ..replay.simulation import ReplayOptions
        from ..replay.traces import read_load_times

        return ReplayOptions(
            load_bandwidth=self.load_bandwidth,
            load_times=read_load_times(self.load_times) if self.load_times else (),
            defragment_every=self.defragment_every,
            moves=self.moves,
            windows=self.windows,
            admission=admission_rules(self.quota, self.slack),
            seed=seed,
        )


def admission_rules(quotas: list[str] | None, slack: float | None) -> AdmissionRules:
    """Return the rules that ``--quota`` and ``--slack`` give."""
    from ..admission import AdmissionRules

    parts: dict[str, float] = {}
    for text in quotas or ():
        name, _, value = text.partition("=")
        try:
            parts[name] = float(value)
        except ValueError:
            raise InputError(f"--quota {text}: CLASS=PART is expected, such as huge-model=0.4") from None
    return AdmissionRules(parts, slack)


@dataclass(frozen=True)
class RepeatedRuns:
    """How often everything is drawn and replayed."""

    runs: Annotated[int, typer.Option("--runs", metavar="N", help="With seeds from --seed on.")] = 1
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the random requests and of the policy.")] = 0

    @property
    def seeds(self) -> range:
        """The seed of each run."""
        if self.runs < 1:
            raise InputError(f"--runs {self.runs}: a number from 1 is allowed")
        require_seed(self.seed)
        return range(self.seed, self.seed + self.runs)


@command(cluster, "replay", (f"{HOME}:Replays", f"{HOME}:PodReplays"))
def replay(
    out: Output,
    *,
    on: ClusterOptions,
    trace: TraceOptions,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="NAME",
            help="anytime (default), rampa, ncar, pipeedge, first-fit, best-fit or fgd. May be repeated.",
        ),
    ] = None,
    option: Options = None,
    how: OperationOptions,
    repeated: RepeatedRuns,
    bounds: Annotated[bool, typer.Option("--bounds/--no-bounds", help="Compute upper bounds for any policy.")] = True,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.json", help="Write figures."), JSON
    ] = None,
    report: ReportFile = None,
) -> None:
    """Replay requests with lifetimes, failures and moves on an empty cluster, and judge policies over time.

    Each policy gets the same requests and failures. Ctrl-C ends the run; what was replayed until then is kept.

    $ tvm-sched cluster replay rampa-base --requests poisson --offered 240 --count 1500 --policy anytime --policy rampa
    $ tvm-sched cluster replay rampa-base --requests poisson --mtbf 2e6 --defragment-every 86400 --report replay.html
    $ tvm-sched cluster replay graph1.txt --services MODELS --requests allocSeq1.txt --scale-lifetimes 20 --runs 3
    $ tvm-sched cluster replay nodes.csv --requests pods_default.csv.gz --policy fgd --policy anytime --runs 10
    """
    seeds = repeated.seeds
    chosen = list(dict.fromkeys(policy or ["anytime"]))
    if option and len(chosen) > 1:
        raise InputError("--option is for one policy; give one --policy")
    if on.name.endswith(".csv"):
        _replay_pods(out, on.name, trace.requests, chosen, seeds, bounds, output, report)
        return
    from .. import ClusterState, get
    from ..replay.replay_results import PolicyRuns, Replays, replays_table
    from ..replay.simulation import replay as replay_one

    options = {name: MethodOptions(option, seed=repeated.seed).of(get(name)) for name in chosen}
    state = on.state()
    search, services = state.search, list(state.services.values())
    done: dict[str, list[object]] = {name: [] for name in chosen}
    stopped = False
    with out.step("Replaying") as shown:
        step = ending_when_interrupted(shown)
        for n in seeds:
            requests, faults = trace.draw(on, n)
            settings = how.settings(n)
            for name in chosen:
                if stopped:
                    break
                empty = ClusterState(state.cluster, services, search)
                one = replay_one(
                    empty, requests, name, options[name], faults=faults, settings=settings, bounds=bounds, progress=step
                )
                done[name].append(one)
                stopped = one.interrupted
    replays = Replays(
        cluster=state.cluster.name,
        gpus=len(state.cluster.gpus),
        requests=trace.requests,
        policies=[PolicyRuns.of(name, each) for name, each in done.items() if each],  # type: ignore[arg-type]
    )
    write_replays(out, replays, output, report)
    out.show(replays_table(replays), escape(replays.sentence))
    out.result(replays)
    if stopped:
        raise typer.Exit(INTERRUPTED)


def _replay_pods(
    out: Output,
    name: str,
    requests: str,
    policies: list[str],
    seeds: range,
    bounds: bool,
    output: Path | None,
    report: Path | None,
) -> None:
    """Replay the pods of a file on the nodes of another one."""
    from ..pods.pod_replay import replay_pods
    from ..pods.pod_trace import draw_pods, read_nodes, read_pods
    from ..replay.replay_results import PodPolicyRuns, PodReplays, PodRun, pods_table

    nodes, pods = read_nodes(name), read_pods(requests)
    gpus = sum(node.gpus for node in nodes)
    done: dict[str, list[PodRun]] = {policy: [] for policy in policies}
    stopped = False
    with out.step("Replaying") as shown:
        step = ending_when_interrupted(shown)
        for seed in seeds:
            drawn = draw_pods(pods, gpus, POD_RATIO, seed)
            for policy in policies:
                if not stopped:
                    done[policy].append(replay_pods(nodes, drawn, policy, pods, seed, bounds, step))
                    stopped = done[policy][-1].interrupted
    runs = [PodPolicyRuns.of(policy, each) for policy, each in done.items() if each]
    replays = PodReplays(nodes=len(nodes), gpus=gpus, requests=requests, policies=runs)
    write_replays(out, replays, output, report)
    out.show(pods_table(replays))
    out.result(replays)
    if stopped:
        raise typer.Exit(INTERRUPTED)


def write_replays(out: Output, replays: Replays | PodReplays, output: Path | None, report: Path | None) -> None:
    """Write the figures and the report where files are given."""
    if output:
        write_atomically(output, encode_document(replays, FORMAT, VERSION))
        out.wrote(output, "figures")
    if report:
        from ..replay import replay_report
        from ..replay.replay_results import Replays

        if isinstance(replays, Replays):
            replay_report.write_replay_report(report, replays)
        else:
            replay_report.write_pod_report(report, replays)
        out.wrote(report, "report")
