"""Cases of `test_control.py` that other tests use, too."""

from cluster_cases import chain_service, small_cluster

from tvm_sched_runtime.errors import ServingError

ONE = chain_service([40], memory=[5], cycle_ns=50, latency_ns=100, name="one")


TWO = chain_service([40, 40], memory=[5, 9], cycle_ns=50, latency_ns=200, name="two")


CLUSTER = small_cluster(racks=2, gpus=3)


class FileDriver:
    """Deployments are files in a folder, so that they outlive the controller; each call may be the last."""

    def __init__(self, folder, before=lambda: None):
        self.folder, self.before, self.most = folder, before, 0
        folder.mkdir(exist_ok=True)
        self.refuses = set()

    def start(self, name, placement):
        self.before()
        if placement.service in self.refuses:
            raise ServingError("it does not load")
        assert placement.request == name
        (self.folder / name).write_text(" ".join(placement.gpus))
        self.before()

    def end(self, name):
        self.before()
        (self.folder / name).unlink(missing_ok=True)
        self.before()

    def living(self):
        return {path.name for path in self.folder.iterdir()}


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now
