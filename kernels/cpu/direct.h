// Direct convolutions of contiguous float images and signals: one group, a norm per output channel. The
// weight is read where it lies; the gain is applied to the sums (forward), to the copies of dy that dx needs anyway,
// and to dw while it becomes dv. So the normalized weight exists nowhere, and no operand is brought into a blocked
// order and back.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <tuple>

#include "kernels.h"

namespace wnfused {

// From dtypes, memory order and sizes alone; the norms have to be moderate besides (weight_norm.h: all_moderate).
// Forward the stride has to be 1, backward it may be small.
bool is_direct(const Tensor& x, const Tensor& v, const Tensor& g, const Geometry& geometry, Dim dim, bool backward);

Tensor direct_convolution(const Tensor& x, const Tensor& v, const Tensor& g, const Tensor& norms, const Tensor& bias,
                          const Geometry& geometry, bool relu);

// mask: dx, dv, dg, db. dy may have any strides.
Gradients direct_convolution_backward(const Tensor& dy, const Tensor& x, const Tensor& v, const Tensor& g,
                                      const Tensor& norms, const Geometry& geometry, std::array<bool, 4> mask);

}  // namespace wnfused
