"""A small stand-in for cupy that keeps a clock a stream, for tests of what measures on GPUs."""

from types import SimpleNamespace

KERNEL_SECONDS, BUS_SECONDS = 20e-6, 80e-6
HOST_RATE, PEER_RATE = 10e9, 40e9


class CudaError(RuntimeError):
    """The runtime's error."""


class Pinned(bytearray):
    @property
    def ptr(self):
        return id(self)


class Event:
    def record(self, stream):
        self.stream, self.at = stream, stream.clock

    def synchronize(self):
        self.stream.synchronize()


class FakeCupy:
    """GPUs at PCI addresses; those of one of the ``buses`` share the rate of host copies.

    Parameters
    ----------
    addresses : sequence of str
        As cupy writes them.
    buses : sequence of sets of int, optional
        Numbers of GPUs that share; default: none do.
    apart : set of (int, int), optional
        Which GPU does not reach which other's memory.
    """

    def __init__(self, addresses, buses=(), apart=frozenset()):
        fake, self.pinned, self.current, self.stream = self, [], 0, None

        class Device:
            def __init__(self, number):
                self.number, self.pci_bus_id = number, addresses[number]

            def use(self):
                fake.current = self.number

            def __enter__(self):
                self.before, fake.current = fake.current, self.number

            def __exit__(self, *_):
                fake.current = self.before

        class Stream:
            def __init__(self, non_blocking=False):
                self.clock, self.captured, self.device, self.copying = 0.0, None, fake.current, False
                fake.streams.append(self)

            def __enter__(self):
                fake.stream = self

            def __exit__(self, *_):
                fake.stream = None

            def take(self, seconds):
                if self.captured is None:
                    self.clock += seconds
                else:
                    self.captured += seconds

            def begin_capture(self):
                self.captured = 0.0

            def end_capture(self):
                seconds, self.captured = self.captured, None
                return SimpleNamespace(launch=lambda stream: stream.take(seconds))

            def wait_event(self, event):
                self.clock = max(self.clock, event.at)

            def synchronize(self):
                self.copying = False

        class Memory:
            def __init__(self, size):
                self.size, self.ptr, self.device = size, id(self), fake.current

            def memset_async(self, value, size, stream):
                stream.take(size / 1e12)

            def copy_from_host_async(self, address, size, stream):
                assert self.device == stream.device, "a copy on another GPU's stream"
                together = next((bus for bus in buses if stream.device in bus), {stream.device})
                beside = {s.device for s in fake.streams if s.copying and s.device in together} - {stream.device}
                stream.copying = True
                stream.take(size * (1 + len(beside)) / HOST_RATE)

            copy_to_host_async = copy_from_host_async

            def copy_from_device_async(self, source, size, stream):
                assert (source.device, self.device) not in apart
                stream.take(size / PEER_RATE)

        def alloc_pinned(size):
            self.pinned.append(Pinned(min(size, 1 << 20)))  # nobody reads what large copies carry
            return self.pinned[-1]

        self.streams = []
        runtime = SimpleNamespace(
            getDeviceCount=lambda: len(addresses), driverGetVersion=lambda: 12080, CUDARuntimeError=CudaError,
            deviceCanAccessPeer=lambda gpu, other: int((gpu, other) not in apart),
        )  # fmt: skip
        self.cuda = SimpleNamespace(
            Device=Device, Stream=Stream, Event=Event, runtime=runtime, alloc=Memory, alloc_pinned_memory=alloc_pinned,
            get_elapsed_time=lambda start, end: 1e3 * (end.at - start.at),
        )  # fmt: skip

    def RawModule(self, path):  # noqa: N802 - cupy's name
        """Any kernel; one that reads pinned memory takes longer."""

        def get_function(symbol):
            def kernel(grid, block, arguments, shared_mem=0):
                on_host = {buffer.ptr for buffer in self.pinned} & {int(each) for each in arguments}
                self.stream.take(BUS_SECONDS if on_host else KERNEL_SECONDS)

            kernel.attributes = {"num_regs": 40, "shared_size_bytes": 1024}
            return kernel

        return SimpleNamespace(get_function=get_function)
