"""What `tvm-sched demo` shows: a network on two machines, and a network that reads text from a picture."""
