// The native CPU kernels behind the operators: tensors in, tensors out, no autograd.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <tuple>
#include <vector>

namespace wnfused {

using at::Tensor;
using Dim = std::optional<int64_t>;
using MaybeTensor = std::optional<Tensor>;
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;  // dx, dv, dg, db; undefined if not selected by the mask

struct Geometry {
  at::IntArrayRef stride, padding, dilation;
  bool transposed;
  at::IntArrayRef output_padding;
  int64_t groups;
};

std::tuple<Tensor, Tensor> weight_norm(const Tensor& v, const Tensor& g, Dim dim, double eps);
std::tuple<Tensor, Tensor> weight_norm_backward(
    const Tensor& dw, const Tensor& v, const Tensor& g, const Tensor& norms, Dim dim, std::array<bool, 2> mask);

// weight_norm of many weights; a dim of -1 stands for none, and norms holds those of all weights.
std::tuple<std::vector<Tensor>, Tensor> model_weights(
    at::TensorList v, at::TensorList g, at::IntArrayRef dims, at::ArrayRef<double> eps, at::ScalarType dtype);
std::tuple<std::vector<Tensor>, std::vector<Tensor>> model_weights_backward(
    at::TensorList dw, at::TensorList v, at::TensorList g, const Tensor& norms, at::IntArrayRef dims,
    const c10::List<bool>& want_v, const c10::List<bool>& want_g);

std::tuple<Tensor, Tensor> linear(
    const Tensor& x, const Tensor& v, const Tensor& g, const MaybeTensor& bias, Dim dim, double eps, bool relu);
Gradients linear_backward(const Tensor& dy, const Tensor& x, const Tensor& v, const Tensor& g, const Tensor& norms,
                          const MaybeTensor& y, Dim dim, std::array<bool, 4> mask);

std::tuple<Tensor, Tensor> convolution(const Tensor& x, const Tensor& v, const Tensor& g, const MaybeTensor& bias,
                                       const Geometry& geometry, Dim dim, double eps, bool relu);
Gradients convolution_backward(const Tensor& dy, const Tensor& x, const Tensor& v, const Tensor& g, const Tensor& norms,
                               const MaybeTensor& y, const Geometry& geometry, Dim dim, std::array<bool, 4> mask);

}  // namespace wnfused
