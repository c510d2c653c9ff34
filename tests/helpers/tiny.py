"""Shapes of tiny models, and weights that are not trivial."""

import torch

TINY = {
    "gpt_neox": {
        "model_type": "gpt_neox",
        "vocab_size": 512,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
    },
    "gpt2": {
        "model_type": "gpt2",
        "vocab_size": 512,
        "n_embd": 32,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 64,
    },
    "llama": {
        "model_type": "llama",
        "vocab_size": 512,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
    },
    "bert": {
        "model_type": "bert",
        "vocab_size": 512,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
    },
    "roberta": {
        "model_type": "roberta",
        "vocab_size": 512,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 65,
        "pad_token_id": 0,
    },
    "distilbert": {
        "model_type": "distilbert",
        "vocab_size": 512,
        "dim": 32,
        "n_layers": 3,
        "n_heads": 4,
        "hidden_dim": 64,
        "max_position_embeddings": 64,
    },
    "albert": {
        "model_type": "albert",
        "vocab_size": 512,
        "embedding_size": 16,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
    },
    "openai-gpt": {
        "model_type": "openai-gpt",
        "vocab_size": 512,
        "n_embd": 32,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 64,
    },
    "xlnet": {
        "model_type": "xlnet",
        "vocab_size": 512,
        "d_model": 32,
        "n_layer": 3,
        "n_head": 4,
        "d_inner": 64,
    },
}


def perturb(model: torch.nn.Module) -> None:
    """Fresh weights are too degenerate to catch a wrong hook: norms and biases are trivial."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0).add_(0.1 * torch.randn_like(parameter))
