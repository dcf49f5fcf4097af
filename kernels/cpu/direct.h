// Direct convolutions of contiguous float images and signals, with one group, one norm per output channel and moderate norms
// (weight_norm.h: all_moderate). The weight is read in place. The gain is applied to the sums (forward), to the copies of dy
// that dx needs anyway, and to dw while it is turned into dv. The normalized weight is never written, and no operand is
// reordered into a blocked layout.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <tuple>

#include "kernels.h"

namespace wnfused {

Tensor direct_convolution(const Tensor& x, const Tensor& v, const Tensor& g, const Tensor& norms, const Tensor& bias,
                          const Geometry& geometry, bool relu);

// dy may have any strides in both.
Tensor direct_input_gradient(const Tensor& dy, const Tensor& x, const Tensor& v, const Tensor& g, const Tensor& norms,
                             const Geometry& geometry);

// dv, dg and db, as far as mask (dx, dv, dg, db) selects them.
std::tuple<Tensor, Tensor, Tensor> direct_weight_gradients(const Tensor& dy, const Tensor& x, const Tensor& v,
                                                           const Tensor& g, const Tensor& norms,
                                                           const Geometry& geometry, std::array<bool, 4> mask);

}  // namespace wnfused
