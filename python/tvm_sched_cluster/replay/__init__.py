"""Replay time on a cluster: requests that come and go, failures with repairs, moves; judged beside upper bounds."""
