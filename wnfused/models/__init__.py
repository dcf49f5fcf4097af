"""The networks of Arpit, Campos & Bengio (NeurIPS 2019), each with weight norm, batch norm or no normalization."""

from wnfused.models.cnn import CNN
from wnfused.models.mlp import MLP
from wnfused.models.resnet import ResNet, resnet20, resnet56, resnet110, resnet164
from wnfused.models.wrn import WRN

__all__ = ["CNN", "MLP", "WRN", "ResNet", "resnet20", "resnet56", "resnet110", "resnet164"]
