// Direct convolutions of contiguous float images and signals, with one group and one norm per output channel. The weight is
// read in place. The gain is applied to the sums (forward), to the copies of dy that dx needs anyway, and to dw while it is
// turned into dv. The normalized weight is never written, and no operand is reordered into a blocked layout.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <tuple>

#include "kernels.h"

namespace wnfused {

// Whether dtypes, memory order and sizes are supported. The norms must also be moderate (weight_norm.h: all_moderate). The
// forward requires stride 1; the backward supports small strides.
bool is_direct(const Tensor& x, const Tensor& v, const Tensor& g, const Geometry& geometry, Dim dim, bool backward);

Tensor direct_convolution(const Tensor& x, const Tensor& v, const Tensor& g, const Tensor& norms, const Tensor& bias,
                          const Geometry& geometry, bool relu);

// mask: dx, dv, dg, db. dy may have any strides.
Gradients direct_convolution_backward(const Tensor& dy, const Tensor& x, const Tensor& v, const Tensor& g,
                                      const Tensor& norms, const Geometry& geometry, std::array<bool, 4> mask);

}  // namespace wnfused
