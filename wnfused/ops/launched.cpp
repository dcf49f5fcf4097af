// The operators' CUDA kernels. The key of a call has everything that Python's argument checks and plans depend on, so a call
// that is found in the table needs no check of its own.
#include "launched.h"

#include <torch/library.h>

#include "launch_table.h"

namespace wnfused {
namespace {

enum Operator : int64_t { LINEAR, LINEAR_BACKWARD, CONVOLUTION, CONVOLUTION_BACKWARD };

int64_t bits(std::array<bool, 4> mask) { return mask[0] | mask[1] << 1 | mask[2] << 2 | mask[3] << 3; }

// Of length 0 or 1, so that no number stands for None: a wrong dim, such as -1, must reach the argument checks.
Ints as_list(const Dim& dim) { return dim.has_value() ? Ints(*dim) : Ints(); }

Forward two(std::vector<Tensor>&& t) { return {std::move(t[0]), std::move(t[1])}; }

Gradients four(std::vector<Tensor>&& t) { return {std::move(t[0]), std::move(t[1]), std::move(t[2]), std::move(t[3])}; }

}  // namespace

Forward launched_linear(const Tensor& x, const Tensor& v, const Tensor& g, const MaybeTensor& bias, Dim dim, double eps,
                        bool relu) {
  if (!launch_path_active(x)) return LinearOp::python().call(x, v, g, bias, dim, eps, relu);
  Call call(LINEAR);
  call.tensor(x).tensor(v).tensor(g).tensor(bias).numbers(as_list(dim)).number(eps).number(int64_t{relu});
  if (auto out = call.run()) return two(std::move(*out));
  return LinearOp::python().call(x, v, g, bias, dim, eps, relu);
}

Gradients launched_linear_backward(const Tensor& dy, const Tensor& x, const Tensor& v, const Tensor& g, const Tensor& norms,
                                   const MaybeTensor& y, Dim dim, double eps, bool biased, std::array<bool, 4> mask) {
  if (!launch_path_active(x)) return LinearBackwardOp::python().call(dy, x, v, g, norms, y, dim, eps, biased, mask);
  Call call(LINEAR_BACKWARD);
  call.tensor(dy).tensor(x).tensor(v).tensor(g).tensor(norms).tensor(y);
  call.numbers(as_list(dim)).number(eps).number(int64_t{biased}).number(bits(mask));
  if (auto out = call.run()) return four(std::move(*out));
  return LinearBackwardOp::python().call(dy, x, v, g, norms, y, dim, eps, biased, mask);
}

Forward launched_convolution(const Tensor& x, const Tensor& v, const Tensor& g, const MaybeTensor& bias, Ints stride,
                             Ints padding, Ints dilation, bool transposed, Ints output_padding, int64_t groups, Dim dim,
                             double eps, bool relu) {
  const auto in_python = [&] {
    return ConvolutionOp::python().call(x, v, g, bias, stride, padding, dilation, transposed, output_padding, groups, dim,
                                        eps, relu);
  };
  if (!launch_path_active(x)) return in_python();
  Call call(CONVOLUTION);
  call.tensor(x).tensor(v).tensor(g).tensor(bias).numbers(stride).numbers(padding).numbers(dilation).numbers(output_padding);
  call.number(int64_t{transposed}).number(groups).numbers(as_list(dim)).number(eps).number(int64_t{relu});
  if (auto out = call.run()) return two(std::move(*out));
  return in_python();
}

Gradients launched_convolution_backward(const Tensor& dy, const Tensor& x, const Tensor& v, const Tensor& g,
                                        const Tensor& norms, const MaybeTensor& y, Ints stride, Ints padding, Ints dilation,
                                        bool transposed, Ints output_padding, int64_t groups, Dim dim, double eps,
                                        std::array<bool, 4> mask) {
  const auto in_python = [&] {
    return ConvolutionBackwardOp::python().call(dy, x, v, g, norms, y, stride, padding, dilation, transposed,
                                                output_padding, groups, dim, eps, mask);
  };
  if (!launch_path_active(x)) return in_python();
  Call call(CONVOLUTION_BACKWARD);
  call.tensor(dy).tensor(x).tensor(v).tensor(g).tensor(norms).tensor(y);
  call.numbers(stride).numbers(padding).numbers(dilation).numbers(output_padding);
  call.number(int64_t{transposed}).number(groups).numbers(as_list(dim)).number(eps).number(bits(mask));
  if (auto out = call.run()) return four(std::move(*out));
  return in_python();
}

TORCH_LIBRARY_IMPL(wnfused, CUDA, m) {
  m.impl("linear", launched_linear);
  m.impl("linear_backward", launched_linear_backward);
  m.impl("convolution", launched_convolution);
  m.impl("convolution_backward", launched_convolution_backward);
}

}  // namespace wnfused
