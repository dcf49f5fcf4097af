// Argument checks of the operators. The Python functions check their arguments before they call an operator, but exported
// graphs, AOTInductor and C++ callers call it directly, and a kernel must never read past the end of a tensor.
// wnfused/ops/arguments.py has the same rules for the fakes and for the other backends.
#pragma once

#include "kernels.h"

namespace wnfused {

void check_weight_norm(const Tensor& v, const Tensor& g, Dim dim, double eps);
void check_weight_norm_backward(
    const Tensor& dw, const Tensor& v, const Tensor& g, const Tensor& norms, Dim dim, double eps);

void check_model_weights(
    at::TensorList v, at::TensorList g, at::IntArrayRef dims, at::ArrayRef<double> eps, at::ScalarType dtype);
void check_model_weights_backward(at::TensorList dw, at::TensorList v, at::TensorList g, const Tensor& norms,
                                  at::IntArrayRef dims, at::ArrayRef<double> eps, const c10::List<bool>& want_v,
                                  const c10::List<bool>& want_g);

void check_linear(const Tensor& x, const Tensor& v, const Tensor& g, const MaybeTensor& bias, Dim dim, double eps);
void check_linear_backward(const Tensor& dy, const Tensor& x, const Tensor& v, const Tensor& g, const Tensor& norms,
                           const MaybeTensor& y, Dim dim, double eps);

void check_convolution(const Tensor& x, const Tensor& v, const Tensor& g, const MaybeTensor& bias,
                       const Geometry& geometry, Dim dim, double eps);
void check_convolution_backward(const Tensor& dy, const Tensor& x, const Tensor& v, const Tensor& g, const Tensor& norms,
                                const MaybeTensor& y, const Geometry& geometry, Dim dim, double eps);

}  // namespace wnfused
