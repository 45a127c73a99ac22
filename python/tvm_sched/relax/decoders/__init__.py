"""Decoder-only language models from their configurations: shapes only, without memory for weights."""

from .decoder_graph import PHASES, decoder_graph, decoder_module, decoder_variants

__all__ = ["PHASES", "decoder_graph", "decoder_module", "decoder_variants"]
