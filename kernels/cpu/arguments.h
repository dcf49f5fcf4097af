// What every operator requires of its arguments. The Python functions check theirs before they call an operator; exported
// graphs, AOTInductor and C++ callers come straight to the operator, and a kernel must never read past a tensor's end.
// wnfused/ops/arguments.py has the same rules for the fakes and for the other backends.
#pragma once

#include "kernels.h"

namespace wnfused {

void check_weight_norm(const Tensor& v, const Tensor& g, Dim dim, double eps);
void check_weight_norm_backward(
    const Tensor& dw, const Tensor& v, const Tensor& g, const Tensor& norms, Dim dim, double eps);

void check_linear(const Tensor& x, const Tensor& v, const Tensor& g, const MaybeTensor& bias, Dim dim, double eps);
void check_linear_backward(const Tensor& dy, const Tensor& x, const Tensor& v, const Tensor& g, const Tensor& norms,
                           const MaybeTensor& y, Dim dim, double eps);

void check_convolution(const Tensor& x, const Tensor& v, const Tensor& g, const MaybeTensor& bias,
                       const Geometry& geometry, Dim dim, double eps);
void check_convolution_backward(const Tensor& dy, const Tensor& x, const Tensor& v, const Tensor& g, const Tensor& norms,
                                const MaybeTensor& y, const Geometry& geometry, Dim dim, double eps);

}  // namespace wnfused
