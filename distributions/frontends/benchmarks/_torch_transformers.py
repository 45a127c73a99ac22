"""Models of transformers: class, inputs, options of the configuration beside `SMALL`, and fixed arguments of the call."""

from __future__ import annotations

from typing import Any

import torch

LEFT_OUT = object()
"""For a field of `SMALL` that a configuration has and that must not be given."""


def words(*shape: int, high: int = 90) -> torch.Tensor:
    """Random token ids that are none of the special ones."""
    return torch.randint(3, high, shape)


def picture(size: int = 32, channels: int = 3) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(1, channels, size, size)}


def text(count: int = 16) -> dict[str, torch.Tensor]:
    """A sentence with padding at its end."""
    return {"input_ids": words(1, count), "attention_mask": (torch.arange(count) < count - 3).long()[None]}


def plain_text(count: int = 16) -> dict[str, torch.Tensor]:
    return {"input_ids": words(1, count)}


def pair(count: int = 12) -> dict[str, torch.Tensor]:
    return {**text(count), "decoder_input_ids": words(1, 7)}


def sound(count: int = 4000) -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(1, count)}


def _two(**more: Any) -> dict[str, Any]:
    return {"text_config": more.get("text", _TEXT), "vision_config": more.get("vision", _VISION), "projection_dim": 16}


_TEXT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 99,
         "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0, "max_position_embeddings": 32}  # fmt: skip
_VISION = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
           "image_size": 32, "patch_size": 8}  # fmt: skip
_SOUND = {"conv_dim": (32, 32), "conv_stride": (5, 4), "conv_kernel": (10, 8), "num_feat_extract_layers": 2,
          "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}  # fmt: skip


def _resnet(t: Any) -> Any:
    return t.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], layer_type="basic",
                          out_features=["stage2", "stage3", "stage4"])  # fmt: skip


def _last_resnet(t: Any) -> Any:
    return t.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], layer_type="basic",
                          out_features=["stage4"])  # fmt: skip


def _swin(t: Any) -> Any:
    return t.SwinConfig(image_size=64, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2], window_size=4,
                        out_features=["stage1", "stage2", "stage3", "stage4"])  # fmt: skip


def _dinov2(t: Any) -> Any:
    return t.Dinov2Config(**{**_VISION, "num_hidden_layers": 4}, reshape_hidden_states=False, apply_layernorm=True,
                          out_features=["stage1", "stage2", "stage3", "stage4"])  # fmt: skip


def _detection() -> dict[str, torch.Tensor]:
    return {**picture(64), "pixel_mask": torch.ones(1, 64, 64, dtype=torch.int64)}


def _boxes() -> dict[str, torch.Tensor]:
    return {**text(), "bbox": torch.randint(0, 50, (1, 16, 4)).sort(-1).values}


def _both() -> dict[str, torch.Tensor]:
    return {**text(), **picture()}


def _series() -> dict[str, torch.Tensor]:
    return {"past_values": torch.randn(1, 32, 2)}


def _past(size: int = 24) -> dict[str, torch.Tensor]:
    return {
        "past_values": torch.rand(1, size + 7),
        "past_time_features": torch.randn(1, size + 7, 2),
        "past_observed_mask": torch.ones(1, size + 7),
        "future_values": torch.rand(1, 8),
        "future_time_features": torch.randn(1, 8, 2),
    }


def _clip(frames: int = 4) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(1, frames, 3, 32, 32)}


def _mel(name: str = "input_features", channels: int = 16, count: int = 60) -> dict[str, torch.Tensor]:
    return {name: torch.randn(1, channels, count), "decoder_input_ids": words(1, 6)}


def _frames(size: int = 20) -> dict[str, torch.Tensor]:
    return {"input_features": torch.randn(1, 24, size)}


_DETR = {"use_timm_backbone": False, "backbone_config": _last_resnet, "use_pretrained_backbone": False,
         "num_queries": 5, "backbone": None}  # fmt: skip
_TIME = {"prediction_length": 8, "context_length": 24, "num_time_features": 2, "lags_sequence": [1, 2, 7],
         "num_parallel_samples": 2}  # fmt: skip
_SWIN = {"image_size": 64, "patch_size": 4, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4,
         "num_attention_heads": LEFT_OUT, "num_hidden_layers": LEFT_OUT}  # fmt: skip
_SSM = {
    "state_size": 4,
    "num_heads": 8,
    "head_dim": 8,
    "n_groups": 2,
    "expand": 2,
    "chunk_size": 8,
    "time_step_rank": 4,
}

MODELS: list[tuple[Any, ...]] = [
    # Encoders of text
    ("AlbertModel", text),
    ("ElectraForTokenClassification", text),
    ("MPNetModel", text),
    ("DebertaV2Model", text, {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}),
    ("DebertaModel", text, {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    ("FunnelModel", text, {"num_hidden_layers": LEFT_OUT, "block_sizes": [1, 1, 1], "num_decoder_layers": 1,
     "d_head": 8, "d_inner": 64}),
    ("LongformerModel", text, {"attention_window": 4}),
    ("BigBirdModel", lambda: text(64), {"block_size": 4, "num_random_blocks": 1, "attention_type": "block_sparse"}),
    ("ReformerModel", lambda: text(16),
     {"attn_layers": ["local", "lsh"], "axial_pos_shape": [4, 4], "axial_pos_embds_dim": [16, 16], "num_buckets": 2,
      "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4, "feed_forward_size": 64, "attention_head_size": 8,
      "hash_seed": 0}),
    ("XLNetModel", plain_text, {"d_inner": 64, "max_position_embeddings": LEFT_OUT}),
    ("XLMModel", plain_text, {"emb_dim": 32, "n_layers": 2, "n_heads": 4}),
    ("RoFormerModel", text),
    ("NystromformerModel", plain_text, {"num_landmarks": 4, "segment_means_seq_len": 16, "conv_kernel_size": 3}),
    ("YosoModel", text),
    ("FNetModel", plain_text),
    ("MobileBertModel", text, {"intra_bottleneck_size": 16, "embedding_size": 32}),
    ("SqueezeBertModel", text, {"embedding_size": 32}),
    ("ConvBertModel", text),
    ("CanineModel", text, {"downsampling_rate": 4, "local_transformer_stride": 8, "num_hash_buckets": 50}),
    ("PerceiverModel", lambda: {"inputs": torch.randn(1, 10, 32)}, {"d_latents": 16, "num_latents": 6,
     "num_self_attends_per_block": 1, "num_self_attention_heads": 2, "num_cross_attention_heads": 2}),
    ("ModernBertModel", text, {"local_attention": 8, "global_attn_every_n_layers": 2, "num_hidden_layers": 3}),
    ("RemBertModel", text, {"input_embedding_size": 16}),
    ("LayoutLMModel", _boxes, {"max_2d_position_embeddings": 64}),
    ("LiltModel", _boxes, {"max_2d_position_embeddings": 64, "hidden_size": 48}),
    ("MraModel", text),
    ("IBertModel", text, {"quant_mode": True}),
    ("EsmModel", text, {"position_embedding_type": "rotary", "mask_token_id": 5}),
    ("TapasModel", lambda: {**text(), "token_type_ids": torch.zeros(1, 16, 7, dtype=torch.int64)}),
    ("LukeModel", text, {"entity_vocab_size": 20}),
    ("EsmcModel", text, {"num_key_value_heads": 4}),
    ("RobertaPreLayerNormModel", text),
    ("DistilBertModel", text, {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}),
    # Decoders
    ("Gemma4TextModel", text, {"sliding_window": 8, "head_dim": 8, "global_head_dim": 16, "hidden_size_per_layer_input": 8,
     "vocab_size_per_layer_input": 99, "layer_types": ["sliding_attention", "full_attention"]}),
    ("Glm4ForCausalLM", text),
    ("LongcatFlashForCausalLM", text, {"q_lora_rank": 16, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
     "v_head_dim": 8, "head_dim": 8, "expert_ffn_hidden_size": 16, "ffn_hidden_size": 64, "zero_expert_num": 2,
     "moe_topk": 2, "num_key_value_heads": 4}),
    ("PersimmonForCausalLM", text),
    ("VaultGemmaForCausalLM", text, {"sliding_window": 8}),
    ("FlexOlmoForCausalLM", text),
    ("AfmoeForCausalLM", text, {"sliding_window": 8, "num_dense_layers": 1}),
    ("Gemma2ForCausalLM", text, {"sliding_window": 8}),
    ("Gemma3ForCausalLM", text, {"sliding_window": 8}),
    ("Phi3ForCausalLM", text),
    ("PhiForCausalLM", text),
    ("FalconForCausalLM", text, {"head_dim": LEFT_OUT}),
    ("FalconForCausalLM", text, {"head_dim": LEFT_OUT, "alibi": True, "new_decoder_architecture": False}),
    ("MptForCausalLM", text, {"max_seq_len": 32}),
    ("GPTJForCausalLM", text),
    ("GPTNeoXForCausalLM", text),
    ("GPTNeoForCausalLM", text, {"attention_types": [[["global", "local"], 1]], "window_size": 4}),
    ("OPTForCausalLM", text),
    ("BloomForCausalLM", text),
    ("MixtralForCausalLM", text),
    ("Qwen2MoeForCausalLM", text),
    ("OlmoeForCausalLM", text),
    ("GptOssForCausalLM", text, {"sliding_window": 8}),
    ("DeepseekV3ForCausalLM", text, {"num_key_value_heads": 4, "head_dim": 8, "q_lora_rank": 16, "kv_lora_rank": 8,
     "qk_rope_head_dim": 8, "v_head_dim": 8,
     "qk_nope_head_dim": 8, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}),
    ("JetMoeForCausalLM", text, {"kv_channels": 8}),
    ("GraniteMoeForCausalLM", text),
    ("OlmoForCausalLM", text),
    ("CohereForCausalLM", text),
    ("StableLmForCausalLM", text),
    ("Starcoder2ForCausalLM", text),
    ("NemotronForCausalLM", text),
    ("GlmForCausalLM", text),
    ("CodeGenForCausalLM", text),
    ("XGLMForCausalLM", text, {"attention_heads": 4}),
    ("CTRLLMHeadModel", text, {"dff": 64}),
    ("MambaForCausalLM", plain_text, _SSM),
    ("Mamba2ForCausalLM", plain_text, _SSM),
    ("RwkvForCausalLM", plain_text, {"attention_hidden_size": 32}),
    ("RecurrentGemmaForCausalLM", text, {"lru_width": 32, "attention_window_size": 8}),
    ("JambaForCausalLM", text, {"use_mamba_kernels": False, "mamba_d_state": 4}),
    ("BambaForCausalLM", text, {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 4,
     "mamba_chunk_size": 8, "attn_layer_indices": [1]}),
    ("Lfm2ForCausalLM", text, {"full_attn_idxs": [1], "block_dim": 32, "block_ff_dim": 64}),
    ("Qwen3NextForCausalLM", text, {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
     "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"]}),
    ("xLSTMForCausalLM", plain_text, {"chunk_size": 8, "num_blocks": 2}),
    # Encoder and decoder
    ("T5ForConditionalGeneration", pair),
    ("BartForConditionalGeneration", pair),
    ("MBartModel", pair),
    ("PegasusModel", pair),
    ("MarianModel", pair),
    ("LEDModel", pair, {"attention_window": 4, "max_encoder_position_embeddings": 64,
     "max_decoder_position_embeddings": 32}),
    ("ProphetNetModel", pair, {"num_hidden_layers": LEFT_OUT,
     "num_encoder_layers": 1, "num_decoder_layers": 1, "num_encoder_attention_heads": 4,
     "num_decoder_attention_heads": 4}),
    ("M2M100Model", pair),
    ("LongT5Model", pair, {"local_radius": 4, "encoder_attention_type": "transient-global", "global_block_size": 4}),
    ("SwitchTransformersModel", pair),
    ("WhisperForConditionalGeneration", lambda: _mel(count=60), {"num_mel_bins": 16, "max_source_positions": 30,
     "max_target_positions": 20}),
    ("Speech2TextModel", lambda: {"input_features": torch.randn(1, 40, 16), "decoder_input_ids": words(1, 6)},
     {"input_feat_per_channel": 16, "max_source_positions": 40, "max_target_positions": 20, "conv_channels": 32}),
    # Pictures
    ("BeitForImageClassification", picture, {"use_relative_position_bias": True, "use_absolute_position_embeddings": True}),
    ("Dinov2Model", picture),
    ("ViTModel", picture),
    ("IJepaModel", picture),
    ("ViTMAEModel", lambda: {**picture(), "noise": torch.rand(1, 16)}),
    ("ViTMAEForPreTraining", lambda: {**picture(), "noise": torch.rand(1, 16)},
     {"decoder_hidden_size": 16, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2,
      "decoder_intermediate_size": 32}),
    ("VideoMAEModel", _clip, {"num_frames": 4}),
    ("TimesformerModel", _clip, {"num_frames": 4}),
    ("VivitModel", _clip, {"num_frames": 4, "tubelet_size": [2, 8, 8]}),
    ("DPTForDepthEstimation", picture, {"is_hybrid": False, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3],
     "neck_hidden_sizes": [8, 8, 16, 16], "fusion_hidden_size": 16, "reassemble_factors": [4, 2, 1, 0.5]}),
    ("DepthAnythingForDepthEstimation", lambda: picture(32), {"backbone_config": _dinov2, "backbone": None,
     "neck_hidden_sizes": [8, 8, 16, 16], "fusion_hidden_size": 16, "reassemble_hidden_size": 32, "patch_size": 8,
     "head_hidden_size": 8}),
    ("SegformerForSemanticSegmentation", lambda: picture(64), {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 16, 32],
     "num_attention_heads": [1, 2, 2, 4], "decoder_hidden_size": 16}),
    ("SwinModel", lambda: picture(64), _SWIN),
    ("Swinv2Model", lambda: picture(64), _SWIN),
    ("DonutSwinModel", lambda: picture(64), _SWIN),
    ("CvtModel", lambda: picture(64), {"embed_dim": [8, 16, 32], "depth": [1, 2, 3], "num_heads": [1, 2, 2]}),
    ("FocalNetModel", lambda: picture(64), {"image_size": 64, "patch_size": 4, "embed_dim": 8, "depths": [1, 1],
     "focal_levels": [2, 2], "focal_windows": [3, 3]}),
    ("GLPNForDepthEstimation", lambda: picture(64), {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 16, 32],
     "num_attention_heads": [1, 2, 2, 4], "decoder_hidden_size": 16}),
    ("PvtModel", lambda: picture(64), {"image_size": 64, "patch_sizes": [4, 2, 2, 2], "depths": [1, 1, 1, 1],
     "hidden_sizes": [8, 16, 16, 32], "num_attention_heads": [1, 2, 2, 4]}),
    ("HieraModel", lambda: picture(64), {"image_size": [64, 64], "embed_dim": 8, "depths": [1, 1, 1, 1],
     "num_heads": [1, 1, 2, 2], "patch_stride": [4, 4], "patch_size": [7, 7]}),
    ("VitDetModel", picture, {"window_size": 2, "window_block_indices": [0], "use_relative_position_embeddings": True}),
    ("YolosForObjectDetection", picture, {"image_size": [32, 32], "num_detection_tokens": 5}),
    ("DetrForObjectDetection", _detection, _DETR),
    ("ConditionalDetrForObjectDetection", _detection, _DETR),
    ("DeformableDetrForObjectDetection", _detection, {**_DETR, "backbone_config": _resnet, "num_feature_levels": 3,
     "disable_custom_kernels": True}),
    ("RTDetrForObjectDetection", lambda: picture(64), {"backbone_config": lambda t: t.RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage2", "stage3", "stage4"]), "backbone": None,
     "encoder_hidden_dim": 32, "encoder_in_channels": [16, 24, 32], "feat_strides": [8, 16, 32], "num_queries": 5,
     "decoder_in_channels": [32, 32, 32], "num_denoising": 0, "decoder_n_points": 2, "anchor_image_size": None}),
    ("Mask2FormerForUniversalSegmentation", lambda: picture(64), {"backbone_config": _swin, "backbone": None,
     "feature_size": 32, "mask_feature_size": 32, "hidden_dim": 32, "encoder_feedforward_dim": 32, "num_queries": 5,
     "encoder_layers": 1, "decoder_layers": 2, "num_attention_heads": 2, "dim_feedforward": 32}),
    ("MaskFormerForInstanceSegmentation", lambda: picture(64), {"backbone_config": _swin, "fpn_feature_size": 32,
     "mask_feature_size": 32, "decoder_config": lambda t: t.DetrConfig(**{**_DETR, "backbone_config": None},
     d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2)}),
    ("UperNetForSemanticSegmentation", lambda: picture(64), {"backbone_config": _swin, "backbone": None,
     "hidden_size": 16, "auxiliary_in_channels": 32, "auxiliary_channels": 8}),
    ("SamModel", lambda: {**picture(64), "input_points": torch.tensor([[[[20.0, 30.0]]]])}, {
     "vision_config": {**_VISION, "image_size": 64, "output_channels": 16, "window_size": 4, "global_attn_indexes": [1],
                       "num_pos_feats": 8, "mlp_dim": 64},
     "prompt_encoder_config": {"hidden_size": 16, "image_size": 64, "patch_size": 8, "mask_input_channels": 4},
     "mask_decoder_config": {"hidden_size": 16, "num_attention_heads": 2, "mlp_dim": 32, "iou_head_hidden_dim": 16}}),
    ("SuperPointForKeypointDetection", lambda: picture(32)),
    ("MobileNetV1Model", lambda: picture(64), {"image_size": 64, "depth_multiplier": 0.25}),
    ("LevitModel", lambda: picture(64), {"image_size": 64, "patch_size": 16, "hidden_sizes": [16, 32, 48],
     "depths": [1, 1, 1], "num_attention_heads": [2, 4, 6], "key_dim": [8, 8, 8]}),
    ("SwiftFormerModel", lambda: picture(64), {"image_size": 64, "depths": [1, 1, 1, 1],
     "embed_dims": [8, 16, 16, 32]}),
    # Pictures with text
    ("CLIPModel", _both, _two()),
    ("SiglipModel", lambda: {**plain_text(), **picture()}, _two()),
    ("BlipForImageTextRetrieval", _both, {**_two(), "image_text_hidden_size": 16}),
    ("CLIPSegForImageSegmentation", _both, {**_two(), "extract_layers": [0, 1], "reduce_dim": 16,
     "decoder_num_attention_heads": 2, "decoder_intermediate_size": 32}),
    ("GroupViTModel", _both, {**_two(vision={**_VISION, "depths": [1, 1, 1], "num_group_tokens": [4, 4, 0],
     "num_output_groups": [4, 4, 4]}), "projection_intermediate_dim": 16}),
    ("OwlViTForObjectDetection", lambda: {**text(), **picture()}, {**_two(), "projection_dim": 32}),
    ("ViltModel", lambda: {**text(), **picture(), "pixel_mask": torch.ones(1, 32, 32, dtype=torch.int64)}),
    ("LayoutLMv3Model", lambda: {**_boxes(), **picture()}, {"input_size": 32, "max_2d_position_embeddings": 64,
     "coordinate_size": 5, "shape_size": 6}),
    ("LxmertModel", lambda: {**text(), "visual_feats": torch.randn(1, 4, 12), "visual_pos": torch.rand(1, 4, 4)},
     {"l_layers": 1, "x_layers": 1, "r_layers": 1, "visual_feat_dim": 12}),
    ("FlavaModel", _both, {"image_config": _VISION, "text_config": _TEXT, "multimodal_config": {k: _TEXT[k] for k in (
     "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")}, "projection_dim": 16}),
    # Sound
    ("HubertModel", sound, _SOUND),
    ("WavLMModel", sound, _SOUND),
    ("SEWModel", sound, {**_SOUND, "squeeze_factor": 2}),
    ("SEWDModel", sound, {**_SOUND, "squeeze_factor": 2, "position_buckets": 8}),
    ("UniSpeechSatModel", sound, _SOUND),
    ("Wav2Vec2ForCTC", sound, {**_SOUND, "do_stable_layer_norm": True, "feat_extract_norm": "layer"}),
    ("Wav2Vec2ConformerModel", sound, {**_SOUND, "position_embeddings_type": "rotary", "conv_depthwise_kernel_size": 5}),
    ("Wav2Vec2ConformerModel", sound, {**_SOUND, "position_embeddings_type": "relative",
     "conv_depthwise_kernel_size": 5}),
    ("Wav2Vec2BertModel", lambda: {"input_features": torch.randn(1, 20, 16)},
     {"feature_projection_input_dim": 16, "conv_depthwise_kernel_size": 5}),
    ("ASTModel", lambda: {"input_values": torch.randn(1, 48, 16)}, {"max_length": 48, "num_mel_bins": 16,
     "frequency_stride": 4, "time_stride": 4}),
    ("EncodecModel", lambda: {"input_values": torch.randn(1, 1, 640)}, {"num_filters": 4, "hidden_size": 16,
     "upsampling_ratios": [4, 2], "codebook_size": 16, "codebook_dim": 16, "num_lstm_layers": 1}),
    ("DacModel", lambda: {"input_values": torch.randn(1, 1, 320)}, {"encoder_hidden_size": 8, "decoder_hidden_size": 32,
     "downsampling_ratios": [2, 4], "upsampling_ratios": [4, 2], "n_codebooks": 2, "codebook_size": 16,
     "codebook_dim": 4, "hidden_size": 32}),
    ("MusicgenForCausalLM", lambda: {"input_ids": words(4, 8)}, {"num_codebooks": 4}),
    ("SpeechT5ForSpeechToText", lambda: {**sound(1000), "decoder_input_ids": words(1, 6)}, _SOUND),
    ("SpeechT5HifiGan", lambda: {"spectrogram": torch.randn(1, 10, 16)}, {"model_in_dim": 16,
     "upsample_initial_channel": 16, "upsample_rates": [4, 2], "upsample_kernel_sizes": [8, 4]}),
    ("VitsModel", plain_text, {"hidden_size": 16, "num_attention_heads": 2, "ffn_dim": 16, "flow_size": 16,
     "spectrogram_bins": 9, "upsample_initial_channel": 16, "upsample_rates": [2, 2], "upsample_kernel_sizes": [4, 4],
     "depth_separable_num_layers": 1, "posterior_encoder_num_wavenet_layers": 1, "prior_encoder_num_flows": 2,
     "prior_encoder_num_wavenet_layers": 1, "noise_scale": 0.0}),
    ("ClapModel", lambda: {**text(), "input_features": torch.randn(1, 1, 64, 16), "is_longer": torch.zeros(1, 1).bool()},
     {"text_config": _TEXT, "projection_dim": 16, "audio_config": {"spec_size": 64, "num_mel_bins": 16,
      "patch_embeds_hidden_size": 8, "hidden_size": 16, "depths": [1, 1], "num_attention_heads": [2, 2],
      "window_size": 4, "patch_size": 4, "patch_stride": [4, 4], "num_hidden_layers": 2}}),
    # Series
    ("PatchTSTForPrediction", _series, {"num_input_channels": 2, "context_length": 32, "patch_length": 8,
     "patch_stride": 8, "prediction_length": 4}),
    ("PatchTSMixerForPrediction", _series, {"num_input_channels": 2, "context_length": 32, "patch_length": 8,
     "patch_stride": 8, "prediction_length": 4}),
    ("TimeSeriesTransformerModel", _past, _TIME),
    ("InformerModel", _past, _TIME),
    ("AutoformerModel", _past, {**_TIME, "label_length": 8}),
    ("DecisionTransformerModel", lambda: {"states": torch.randn(1, 5, 7), "actions": torch.randn(1, 5, 3),
     "rewards": torch.randn(1, 5, 1), "returns_to_go": torch.randn(1, 5, 1), "timesteps": torch.arange(5)[None],
     "attention_mask": torch.ones(1, 5)}, {"state_dim": 7, "act_dim": 3, "max_ep_len": 20}),
]  # fmt: skip
