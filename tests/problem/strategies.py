"""Random graphs and topologies for the tests of problem files."""

from hypothesis import strategies as st
from tvm_sched.problem import Bus, Device, Link, Operator, OpGraph, Switch, Tensor, Topology

positive = st.floats(1.0, 1e15)
seconds = st.floats(0.0, 1.0)
words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)


@st.composite
def topologies(draw):
    """Topologies with buses, links and a switch, of devices that may be equal in all but their name."""
    names = draw(st.lists(words, min_size=1, max_size=4, unique=True))
    bus_names = draw(st.lists(words, max_size=2, unique=True))
    buses = tuple(Bus(name, draw(positive), draw(seconds), draw(st.booleans())) for name in bus_names)
    kinds = draw(st.lists(st.tuples(st.integers(1, 1 << 50), positive, positive, seconds, words), min_size=1, max_size=2))
    devices = []
    for name in names:
        memory, bandwidth, flops, launch, model = draw(st.sampled_from(kinds))
        bus = draw(st.sampled_from(["", *bus_names]))
        peak = {"float32": flops, "float16": 2 * flops}
        devices.append(Device(name, memory, bandwidth, peak, "cuda", launch, bus, model))
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    links = tuple(Link(p, draw(positive), draw(seconds), draw(st.booleans()), draw(st.integers(1, 6))) for p in chosen)
    switches = (Switch("all", tuple(names), draw(positive), draw(seconds)),) if draw(st.booleans()) else ()
    host = draw(st.integers(0, 1 << 40))
    return Topology(draw(words), tuple(devices), buses, links, switches, draw(st.booleans()), host, draw(st.text(max_size=9)))


@st.composite
def graphs(draw):
    """Graphs whose operators read tensors made before, inputs and parameters; several outputs, or none."""
    tensors = [Tensor("x", draw(st.integers(0, 1000)), "input", (2, 3), "float32"), Tensor("w", 5, "parameter")]
    operators = []
    for o in range(draw(st.integers(0, 6))):
        inputs = draw(st.lists(st.sampled_from([tensor.name for tensor in tensors]), max_size=3))
        made = [Tensor(f"t{o}.{i}", draw(st.integers(0, 1000))) for i in range(draw(st.integers(1, 2)))]
        flops = draw(st.integers(0, 10**12))
        operators.append(Operator(f"o{o}", draw(words), tuple(inputs), tuple(tensor.name for tensor in made), flops))
        tensors += made
    outputs = draw(st.lists(st.sampled_from([tensor.name for tensor in tensors]), max_size=3))
    listed = draw(st.permutations(operators))
    return OpGraph(draw(words), tuple(listed), tuple(tensors), tuple(outputs))
