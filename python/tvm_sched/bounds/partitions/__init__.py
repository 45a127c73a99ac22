"""Lower bounds on the cost of the bottleneck stage, for every partition of a graph into at most k stages."""
