"""torch models of public packages, beside those that the tests write as repositories do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import transformers as hf
import x_transformers as xt
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "lift"))
from torch_models import (
    GPT,
    EinsumBlock,
    LlamaLike,
    Mixer,
    Positional,
    PostNorm,
    Residual,
    lenet,
    mlp,
)

hf.logging.set_verbosity_error()
TOKENS = 6
IMAGE = (3, 8, 8)


_SIZES = {"num_hidden_layers": 2, "num_attention_heads": 4, "initializer_range": 0.2}
_WORDS = {
    "vocab_size": 40, "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip


def _hugging(model: Any, config: Any, **options: Any):
    def make(width: int) -> nn.Module:
        sizes = {"hidden_size": width, "intermediate_size": 2 * width, **_SIZES}
        return model(config(**(sizes | options))).eval()

    return make


def _gpt2(model: Any, **options: Any):
    def make(width: int) -> nn.Module:
        config = hf.GPT2Config(
            n_embd=width, n_layer=2, n_head=4, vocab_size=40, n_positions=16,
            initializer_range=0.2, bos_token_id=1, eos_token_id=2, **options,
        )  # fmt: skip
        return model(config).eval()

    return make


def _distil(width: int) -> nn.Module:
    config = hf.DistilBertConfig(
        dim=width, n_layers=2, n_heads=4, hidden_dim=2 * width, vocab_size=40,
        max_position_embeddings=16, initializer_range=0.2,
    )  # fmt: skip
    return hf.DistilBertForSequenceClassification(config).eval()


def _timm(name: str, **options: Any):
    def make(width: int) -> nn.Module:
        import timm  # needs torchvision, whose build must fit that of torch

        return timm.create_model(
            name, img_size=8, patch_size=4, embed_dim=width, depth=2, num_heads=4, num_classes=5,
            **options,
        ).eval()  # fmt: skip

    return make


def _vit(name: str):
    def make(width: int) -> nn.Module:
        import vit_pytorch  # needs torchvision too

        return getattr(vit_pytorch, name)(
            image_size=8, patch_size=4, num_classes=5, dim=width, depth=2, heads=4,
            mlp_dim=2 * width, dim_head=width // 4,
        ).eval()  # fmt: skip

    return make


def _decoder(**options: Any):
    def make(width: int) -> nn.Module:
        return xt.TransformerWrapper(
            num_tokens=40, max_seq_len=16,
            attn_layers=xt.Decoder(
                dim=width, depth=2, heads=4, attn_dim_head=width // 4, **options
            ),
        ).eval()  # fmt: skip

    return make


MODELS: dict[str, tuple[str, Any, Any]] = {
    "MLP": ("torch", mlp, IMAGE),
    "LeNet": ("torch", lenet, IMAGE),
    "ResNet block, BatchNorm": ("torch", lambda w: Residual(w).eval(), IMAGE),
    "ResNet block, max pooling": ("torch", lambda w: Residual(w, nn.MaxPool2d).eval(), IMAGE),
    "TransformerEncoder, post-norm": ("torch", lambda w: PostNorm(w).eval(), TOKENS),
    "TransformerEncoder, pre-norm": (
        "torch", lambda w: PostNorm(w, norm_first=True, activation="gelu").eval(), TOKENS,
    ),
    "TransformerEncoder in training": ("torch", lambda w: PostNorm(w), TOKENS),
    "sines and cosines": ("torch", Positional, TOKENS),
    "LSTM": ("torch", lambda w: nn.LSTM(3, w, batch_first=True), (6, 3)),
    "nanoGPT": ("as nanoGPT", lambda w: GPT(w).eval(), TOKENS),
    "nanoGPT, tied": ("as nanoGPT", lambda w: GPT(w, tied=True).eval(), TOKENS),
    "minGPT": ("as minGPT", lambda w: GPT(w, flash=False).eval(), TOKENS),
    "Llama, reference code": ("as llama", LlamaLike, TOKENS),
    "einsum attention": ("as lucidrains", EinsumBlock, (6, 3)),
    "MLP-Mixer": ("as mixer", Mixer, (6, 3)),
    "BertForSequenceClassification": (
        "transformers", _hugging(hf.BertForSequenceClassification, hf.BertConfig, **_WORDS), TOKENS,
    ),
    "BertModel": ("transformers", _hugging(hf.BertModel, hf.BertConfig, **_WORDS), TOKENS),
    "RobertaModel": ("transformers", _hugging(hf.RobertaModel, hf.RobertaConfig, **_WORDS), TOKENS),
    "DistilBertForSequenceClassification": ("transformers", _distil, TOKENS),
    "GPT2Model": ("transformers", _gpt2(hf.GPT2Model), TOKENS),
    "GPT2LMHeadModel": ("transformers", _gpt2(hf.GPT2LMHeadModel), TOKENS),
    "GPT2LMHeadModel, untied": (
        "transformers", _gpt2(hf.GPT2LMHeadModel, tie_word_embeddings=False), TOKENS,
    ),
    "LlamaForCausalLM": (
        "transformers",
        _hugging(hf.LlamaForCausalLM, hf.LlamaConfig, num_key_value_heads=2, **_WORDS),
        TOKENS,
    ),
    "MistralForCausalLM": (
        "transformers",
        _hugging(hf.MistralForCausalLM, hf.MistralConfig, num_key_value_heads=2, **_WORDS),
        TOKENS,
    ),
    "ViTForImageClassification": (
        "transformers",
        _hugging(hf.ViTForImageClassification, hf.ViTConfig, image_size=8, patch_size=4),
        IMAGE,
    ),
    "ViT": ("vit-pytorch", _vit("ViT"), IMAGE),
    "SimpleViT": ("vit-pytorch", _vit("SimpleViT"), IMAGE),
    "Decoder": ("x-transformers", _decoder(), TOKENS),
    "Decoder, RMSNorm, SwiGLU": (
        "x-transformers", _decoder(use_rmsnorm=True, ff_glu=True, ff_swish=True), TOKENS,
    ),
    "Decoder, rotary": ("x-transformers", _decoder(rotary_pos_emb=True), TOKENS),
    "Decoder, rotary on all channels": (
        "x-transformers",
        lambda w: _decoder(rotary_pos_emb=True, rotary_emb_dim=w // 4)(w),
        TOKENS,
    ),
    "Decoder, ALiBi": ("x-transformers", _decoder(alibi_pos_bias=True), TOKENS),
    "vit_tiny_patch16_224": ("timm", _timm("vit_tiny_patch16_224"), IMAGE),
    "deit_tiny_patch16_224": ("timm", _timm("deit_tiny_patch16_224"), IMAGE),
}  # fmt: skip
