// The operators on a GPU: a recorded call is repeated from C++, any other runs in Python, which may record it.
#pragma once

#include "operators.h"

namespace wnfused {

Forward launched_linear(const Tensor& x, const Tensor& v, const Tensor& g, const MaybeTensor& bias, Dim dim, double eps,
                        bool relu);
Gradients launched_linear_backward(const Tensor& dy, const Tensor& x, const Tensor& v, const Tensor& g, const Tensor& norms,
                                   const MaybeTensor& y, Dim dim, double eps, bool biased, std::array<bool, 4> mask);
Forward launched_convolution(const Tensor& x, const Tensor& v, const Tensor& g, const MaybeTensor& bias, Ints stride,
                             Ints padding, Ints dilation, bool transposed, Ints output_padding, int64_t groups, Dim dim,
                             double eps, bool relu);
Gradients launched_convolution_backward(const Tensor& dy, const Tensor& x, const Tensor& v, const Tensor& g,
                                        const Tensor& norms, const MaybeTensor& y, Ints stride, Ints padding, Ints dilation,
                                        bool transposed, Ints output_padding, int64_t groups, Dim dim, double eps,
                                        std::array<bool, 4> mask);

}  // namespace wnfused
