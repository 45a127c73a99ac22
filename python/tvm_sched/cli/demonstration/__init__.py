"""The command `tvm-sched demo`: a network on two topologies, and a network that reads text from a picture."""
