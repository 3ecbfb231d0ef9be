"""The papers' networks as plain modules, with initialisation, losses and dropout (M1 to M12, L1 to L9)."""

from fedatlas.models.config import MixedConfig, ModelConfig
from fedatlas.models.dropout import Dropout, adopt_dropout, draw_masks, dropout_shapes
from fedatlas.models.inspection import flops, has_batch_norm, parameter_count
from fedatlas.models.losses import LOSSES, Loss, LossConfig, make_loss
from fedatlas.models.make import init_model, load_initial, make_model
from fedatlas.models.registry import MODELS, describe_models, find_model

__all__ = [
    "LOSSES",
    "MODELS",
    "Dropout",
    "Loss",
    "LossConfig",
    "MixedConfig",
    "ModelConfig",
    "adopt_dropout",
    "describe_models",
    "draw_masks",
    "dropout_shapes",
    "find_model",
    "flops",
    "has_batch_norm",
    "init_model",
    "load_initial",
    "make_loss",
    "make_model",
    "parameter_count",
]
