"""The scheduling problem of a lowered module: its graph, work, demands and latencies."""
