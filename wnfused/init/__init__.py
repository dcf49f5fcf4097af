"""Initialization of weight-normalized networks: the scheme of Arpit, Campos & Bengio (2019) and its baselines."""

from wnfused.init.baselines import he_, norm_gain_, torch_default_
from wnfused.init.data_dependent import data_dependent_
from wnfused.init.explain import explain
from wnfused.init.gains import gain
from wnfused.init.graph import RolesUnknown
from wnfused.init.hanin import hanin_
from wnfused.init.padding import padding_factor
from wnfused.init.robust import robust_, robust_layer_
from wnfused.init.roles import Role, infer_roles
from wnfused.init.weights import (
    kaiming_normal_,
    kaiming_uniform_,
    normal_,
    orthogonal_,
    trunc_normal_,
    uniform_,
    weight_,
    xavier_normal_,
    xavier_uniform_,
)

__all__ = [
    "Role",
    "RolesUnknown",
    "data_dependent_",
    "explain",
    "gain",
    "hanin_",
    "he_",
    "infer_roles",
    "kaiming_normal_",
    "kaiming_uniform_",
    "norm_gain_",
    "normal_",
    "orthogonal_",
    "padding_factor",
    "robust_",
    "robust_layer_",
    "torch_default_",
    "trunc_normal_",
    "uniform_",
    "weight_",
    "xavier_normal_",
    "xavier_uniform_",
]
