"""Decoder-only language models made from their configurations: shapes only, no weights are allocated."""

from ...problem.decoder_config import PRESETS, DecoderConfig, read_config
from .decoder_graph import PHASES, decoder_graph, decoder_module, decoder_variants

__all__ = ["PHASES", "PRESETS", "DecoderConfig", "decoder_graph", "decoder_module", "decoder_variants", "read_config"]
