"""Upper bounds on how many services any allocator can place."""
