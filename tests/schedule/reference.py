"""A second simulator that shares nothing with the first: it walks through time, starts what can start and counts bytes.

Slow and plain on purpose. `docs/model.md` is its only source.
"""

import heapq
from dataclasses import dataclass, field

from tvm_sched_runtime.problem import HOST


class Deadlock(Exception):
    """Time stands still with work left."""


@dataclass
class Run:
    """What came out: (start, end) of each placement and transfer, and the most bytes that each device held."""

    kernels: dict = field(default_factory=dict)
    transfers: dict = field(default_factory=dict)
    peak: list = field(default_factory=list)

    @property
    def latency_ns(self):
        return max((end for _, end in self.kernels.values()), default=0)


class Machine:
    """Devices and channels with the queues of work that a schedule gives them."""

    def __init__(self, problem, schedule):
        self.problem, self.topology, self.schedule = problem, problem.topology, schedule
        self.operators = {operator.name: o for o, operator in enumerate(problem.graph.operators)}
        self.tensors = {tensor.name: tensor for tensor in problem.graph.tensors}
        self.made_by = {name: o.name for o in problem.graph.operators for name in o.outputs}
        self.where = {p.operator: p for p in schedule.placements}
        self.device_queue = {device.name: [] for device in self.topology.devices}
        for p in schedule.placements:
            self.device_queue[p.device].append(p)
        self.channel_queue = {c: [] for c in range(len(self.topology.channels))}
        for x, transfer in enumerate(schedule.transfers):
            for c in self.channels(transfer):
                self.channel_queue[c].append(x)
        self.busy_devices, self.busy_channels = set(), set()
        self.at = {
            (t.name, d.name)
            for t in problem.graph.tensors
            for d in self.topology.devices
            if t.kind != "activation" and d.shares_host_memory and (t.kind == "input" or not self.topology.storage)
        }
        self.readers = {}
        self.evicted = {(t.tensor, t.device) for t in schedule.transfers if t.evict}
        self.held = {device.name: {} for device in self.topology.devices}
        self.finishes = []  # heap of (time, number, what to do)
        self.run = Run(peak=[0] * len(self.topology.devices))
        self.count_readers()

    def channels(self, transfer):
        d = self.topology.device_id[transfer.device]
        source = self.topology.device_id[transfer.source] if transfer.source else HOST
        route = self.topology.route(source, d)
        return route.channels if route else ()

    def reads(self, placement):
        """Names of the tensors that the kernel reads from its device's memory."""
        operator = self.problem.graph.operators[self.operators[placement.operator]]
        names = dict.fromkeys(operator.inputs)
        return [n for n in names if not (placement.direct_host_access and self.tensors[n].kind != "activation")]

    def count_readers(self):
        for placement in self.schedule.placements:
            for name in self.reads(placement):
                self.readers[name, placement.device] = self.readers.get((name, placement.device), 0) + 1
        for transfer in self.schedule.transfers:
            if transfer.kind == "copy":
                key = transfer.tensor, transfer.source
                self.readers[key] = self.readers.get(key, 0) + 1

    # ---- memory ----

    def take(self, name, device):
        self.held[device][name] = self.tensors[name].size

    def release_if_idle(self, name, device):
        stays = self.tensors[name].kind == "parameter" or name in self.problem.graph.outputs
        stays = stays and (name, device) not in self.evicted
        if self.readers.get((name, device), 0) == 0 and not stays:
            self.held[device].pop(name, None)

    def has_read(self, name, device):
        self.readers[name, device] -= 1
        self.release_if_idle(name, device)

    def arrive(self, name, device):
        self.at.add((name, device))
        self.release_if_idle(name, device)

    # ---- time ----

    def later(self, time, action):
        heapq.heappush(self.finishes, (time, len(self.run.kernels) + len(self.run.transfers), id(action), action))

    def start_kernels(self, now):
        started = False
        for device, queue in self.device_queue.items():
            if not queue or device in self.busy_devices:
                continue
            placement = queue[0]
            reads = self.reads(placement)
            read = None
            if placement.direct_host_access:
                read = next(x for x, t in enumerate(self.schedule.transfers) if t.operator == placement.operator)
                if not self.may_travel(read):
                    continue
            if all((name, device) in self.at for name in reads):
                self.launch(now, queue.pop(0), reads, read)
                started = True
        return started

    def launch(self, now, placement, reads, read):
        o, device = self.operators[placement.operator], placement.device
        d = self.topology.device_id[device]
        outputs = self.problem.graph.operators[o].outputs
        costs = self.problem.costs.direct_ns if placement.direct_host_access else self.problem.costs.operator_ns
        end = now + int(costs[o, d])
        self.run.kernels[placement.operator] = now, end
        self.busy_devices.add(device)
        for name in outputs:
            self.take(name, device)

        def finish():
            self.busy_devices.remove(device)
            for name in reads:
                self.has_read(name, device)
            for name in outputs:
                self.arrive(name, device)

        self.later(end, finish)
        if read is not None:
            bus_end = now + self.problem.host_read_ns(o, d)
            self.occupy(read)
            self.run.transfers[read] = now, bus_end
            self.later(bus_end, lambda: self.leave(read))

    def may_travel(self, x):
        channels = self.channels(self.schedule.transfers[x])
        return all(self.channel_queue[c][0] == x and c not in self.busy_channels for c in channels)

    def occupy(self, x):
        for c in self.channels(self.schedule.transfers[x]):
            self.channel_queue[c].pop(0)
            self.busy_channels.add(c)

    def leave(self, x):
        self.busy_channels.difference_update(self.channels(self.schedule.transfers[x]))

    def start_transfers(self, now):
        started = False
        for x, transfer in enumerate(self.schedule.transfers):
            if x in self.run.transfers or transfer.kind == "host_read" or not self.may_travel(x):
                continue
            if transfer.kind == "copy" and (transfer.tensor, transfer.source) not in self.at:
                continue
            self.travel(now, x, transfer)
            started = True
        return started

    def travel(self, now, x, transfer):
        index, devices = self.problem.graph.index, self.topology.device_id
        t, d = index.tensor_id[transfer.tensor], devices[transfer.device]
        if transfer.kind == "load":
            end = now + self.problem.load_ns(t, d)
        else:
            end = now + self.problem.copy_ns(t, devices[transfer.source], d)
        self.run.transfers[x] = now, end
        self.occupy(x)
        self.take(transfer.tensor, transfer.device)

        def finish():
            self.leave(x)
            self.arrive(transfer.tensor, transfer.device)
            if transfer.kind == "copy":
                self.has_read(transfer.tensor, transfer.source)

        self.later(end, finish)

    def go(self):
        now = 0
        while True:
            while self.start_kernels(now) or self.start_transfers(now):
                pass
            if self.finishes and self.finishes[0][0] == now:
                heapq.heappop(self.finishes)[-1]()
                continue
            for d, held in enumerate(self.held.values()):
                self.run.peak[d] = max(self.run.peak[d], sum(held.values()))
            if not self.finishes:
                break
            now = self.finishes[0][0]
            while self.finishes and self.finishes[0][0] == now:  # free first, then start
                heapq.heappop(self.finishes)[-1]()
        if len(self.run.kernels) < len(self.schedule.placements) or len(self.run.transfers) < len(
            self.schedule.transfers
        ):
            raise Deadlock
        return self.run


def reference_run(problem, schedule):
    """Simulate a schedule that obeys rules 1 to 3."""
    return Machine(problem, schedule).go()
