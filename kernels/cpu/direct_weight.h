// The weight gradient of the direct convolutions: dw, and from it dv, dg and db.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "direct_shape.h"

namespace wnfused {

struct WeightGradients {  // undefined if not selected by the mask (dx, dv, dg, db)
  Tensor dv, dg, db;
};

WeightGradients weight_gradients(const Tensor& dy, const Tensor& x, const Tensor& v, const Tensor& g,
                                 const Tensor& norms, const Shape& s, std::array<bool, 4> mask);

}  // namespace wnfused
