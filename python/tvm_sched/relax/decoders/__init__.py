"""Decoder-only language models from their configurations: shapes only, without memory for weights."""

from tvm_sched_runtime.problem.decoder_config import PRESETS, DecoderConfig, read_config

from .decoder_graph import PHASES, decoder_graph, decoder_module, decoder_variants

__all__ = ["PHASES", "PRESETS", "DecoderConfig", "decoder_graph", "decoder_module", "decoder_variants", "read_config"]
