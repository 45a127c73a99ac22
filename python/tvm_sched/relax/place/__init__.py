"""Passes that decide: placement, submodels, streams, launch order, stages."""
