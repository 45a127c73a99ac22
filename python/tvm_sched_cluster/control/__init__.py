"""A controller that keeps a cluster in the state that was asked for: store, reconciliation, drivers, HTTP."""
