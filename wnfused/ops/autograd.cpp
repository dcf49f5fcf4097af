// The operators' CPU kernels and their autograd for CPU and CUDA tensors, registered from C++ so that a call costs as little
// as one of torch's own.
// schema.py defines the operators. autograd.py does the same in Python, for other devices and without the native library. The
// nodes are written like torch's generated ones, so that hooks on saved tensors, checkpointing, torch.compile and torch.func
// work as usual.
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <atomic>

#include "arguments.h"
#include "kernels.h"
#include "launched.h"
#include "operators.h"

namespace wnfused {
namespace {

using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

std::atomic<bool> native_chosen{true};

// --- CPU kernels: the native ones, or, if another backend is chosen, what CUDA tensors get ----------------------------

Forward cpu_weight_norm(const Tensor& v, const Tensor& g, Dim dim, double eps) {
  if (!native_chosen) return WeightNormOp::python().call(v, g, dim, eps);
  check_weight_norm(v, g, dim, eps);
  return weight_norm(v, g, dim, eps);
}

std::tuple<Tensor, Tensor> cpu_weight_norm_backward(const Tensor& dw, const Tensor& v, const Tensor& g,
                                                    const Tensor& norms, Dim dim, double eps, std::array<bool, 2> mask) {
  if (!native_chosen) return WeightNormBackwardOp::python().call(dw, v, g, norms, dim, eps, mask);
  check_weight_norm_backward(dw, v, g, norms, dim, eps);
  return weight_norm_backward(dw, v, g, norms.contiguous(), dim, mask);
}

std::tuple<std::vector<Tensor>, Tensor> cpu_model_weights(at::TensorList v, at::TensorList g, Ints dims,
                                                          at::ArrayRef<double> eps, at::ScalarType dtype) {
  if (!native_chosen) return ModelWeightsOp::python().call(v, g, dims, eps, dtype);
  check_model_weights(v, g, dims, eps, dtype);
  return model_weights(v, g, dims, eps, dtype);
}

std::tuple<std::vector<Tensor>, std::vector<Tensor>> cpu_model_weights_backward(
    at::TensorList dw, at::TensorList v, at::TensorList g, const Tensor& norms, Ints dims, at::ArrayRef<double> eps,
    c10::List<bool> want_v, c10::List<bool> want_g) {
  if (!native_chosen) return ModelWeightsBackwardOp::python().call(dw, v, g, norms, dims, eps, want_v, want_g);
  check_model_weights_backward(dw, v, g, norms, dims, eps, want_v, want_g);
  return model_weights_backward(dw, v, g, norms.contiguous(), dims, want_v, want_g);
}

Forward cpu_linear(const Tensor& x, const Tensor& v, const Tensor& g, const MaybeTensor& bias, Dim dim, double eps,
                   bool relu) {
  if (!native_chosen) return launched_linear(x, v, g, bias, dim, eps, relu);
  check_linear(x, v, g, bias, dim, eps);
  return linear(x, v, g, bias, dim, eps, relu);
}

Gradients cpu_linear_backward(const Tensor& dy, const Tensor& x, const Tensor& v, const Tensor& g, const Tensor& norms,
                              const MaybeTensor& y, Dim dim, double eps, bool biased, std::array<bool, 4> mask) {
  if (!native_chosen) return launched_linear_backward(dy, x, v, g, norms, y, dim, eps, biased, mask);
  check_linear_backward(dy, x, v, g, norms, y, dim, eps);
  return linear_backward(dy, x, v, g, norms.contiguous(), y, dim, mask);
}

Forward cpu_convolution(const Tensor& x, const Tensor& v, const Tensor& g, const MaybeTensor& bias, Ints stride,
                        Ints padding, Ints dilation, bool transposed, Ints output_padding, int64_t groups, Dim dim,
                        double eps, bool relu) {
  if (!native_chosen) {
    return launched_convolution(x, v, g, bias, stride, padding, dilation, transposed, output_padding, groups, dim, eps, relu);
  }
  const Geometry geometry{stride, padding, dilation, transposed, output_padding, groups};
  check_convolution(x, v, g, bias, geometry, dim, eps);
  return convolution(x, v, g, bias, geometry, dim, eps, relu);
}

Gradients cpu_convolution_backward(const Tensor& dy, const Tensor& x, const Tensor& v, const Tensor& g,
                                   const Tensor& norms, const MaybeTensor& y, Ints stride, Ints padding, Ints dilation,
                                   bool transposed, Ints output_padding, int64_t groups, Dim dim, double eps,
                                   std::array<bool, 4> mask) {
  if (!native_chosen) {
    return launched_convolution_backward(dy, x, v, g, norms, y, stride, padding, dilation, transposed, output_padding, groups,
                                         dim, eps, mask);
  }
  const Geometry geometry{stride, padding, dilation, transposed, output_padding, groups};
  check_convolution_backward(dy, x, v, g, norms, y, geometry, dim, eps);
  return convolution_backward(dy, x, v, g, norms.contiguous(), y, geometry, dim, mask);
}

// --- Autograd ------------------------------------------------------------------------------------------------------

bool has_tangent(std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* t : tensors)
    if (t->defined() && t->_fw_grad(0).defined()) return true;
  return false;
}

const Tensor& tensor_or_undefined(const MaybeTensor& t) {
  static const Tensor undefined;
  return t.has_value() ? *t : undefined;
}

// The base of all nodes: the saved tensors x, v, g, norms, y, in this order; those a node does not have are undefined.
struct SavedNode : Node {
  SavedVariable x_, v_, g_, norms_, y_;
  bool has_y_ = false;
  Dim dim_;
  double eps_ = 0;

  void release_variables() override {
    for (SavedVariable* saved : {&x_, &v_, &g_, &norms_, &y_}) saved->reset_data();
  }

  void save(const Tensor& v, const Tensor& g, Dim dim, double eps) {
    v_ = SavedVariable(v, false), g_ = SavedVariable(g, false), dim_ = dim, eps_ = eps;
  }

  // After the forward: saves the norms and, for a ReLU, the output, and sets the output's history.
  void finish(Forward& out, bool relu) {
    auto& [y, norms] = out;
    norms_ = SavedVariable(norms, false);
    torch::autograd::set_history(y, pointer());
    if (relu) y_ = SavedVariable(y, true), has_y_ = true;
  }

  c10::intrusive_ptr<Node> pointer() { return c10::intrusive_ptr<Node>::reclaim_copy(this); }

  MaybeTensor saved_y() { return has_y_ ? MaybeTensor(y_.unpack(pointer())) : std::nullopt; }

  template <size_t N>
  std::array<bool, N> mask() const {
    std::array<bool, N> m;
    for (size_t i = 0; i < N; ++i) m[i] = task_should_compute_output(i);
    return m;
  }
};

// Calls the backward operator: below autograd for an ordinary backward, with autograd under create_graph.
template <typename Op, typename... Args>
auto call_backward(const Args&... args) {
  if (at::GradMode::is_enabled()) return Op::op().call(args...);
  at::AutoDispatchBelowADInplaceOrView guard;
  return Op::op().call(args...);
}

variable_list as_list(Gradients gradients) {
  auto& [dx, dv, dg, db] = gradients;
  return {std::move(dx), std::move(dv), std::move(dg), std::move(db)};
}

struct WeightNormNode : SavedNode {
  std::string name() const override { return "WeightNormBackward"; }
  variable_list apply(variable_list&& grads) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!grads[0].defined()) return variable_list(2);
    auto [dv, dg] = call_backward<WeightNormBackwardOp>(grads[0], v_.unpack(), g_.unpack(), norms_.unpack(), dim_, eps_,
                                                        mask<2>());
    return {std::move(dv), std::move(dg)};
  }
};

struct LinearNode : SavedNode {
  bool biased_ = false;

  std::string name() const override { return "WNLinearBackward"; }
  variable_list apply(variable_list&& grads) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!grads[0].defined()) return variable_list(4);
    return as_list(call_backward<LinearBackwardOp>(grads[0], x_.unpack(), v_.unpack(), g_.unpack(), norms_.unpack(),
                                                   saved_y(), dim_, eps_, biased_, mask<4>()));
  }
};

struct ConvolutionNode : SavedNode {
  std::vector<int64_t> stride_, padding_, dilation_, output_padding_;
  bool transposed_ = false;
  int64_t groups_ = 1;

  std::string name() const override { return "WNConvolutionBackward"; }
  variable_list apply(variable_list&& grads) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!grads[0].defined()) return variable_list(4);
    return as_list(call_backward<ConvolutionBackwardOp>(
        grads[0], x_.unpack(), v_.unpack(), g_.unpack(), norms_.unpack(), saved_y(), Ints(stride_), Ints(padding_),
        Ints(dilation_), transposed_, Ints(output_padding_), groups_, dim_, eps_, mask<4>()));
  }
};

template <typename N>
c10::intrusive_ptr<N> make_node(edge_list&& edges) {
  auto node = c10::make_intrusive<N>();
  node->set_next_edges(std::move(edges));
  return node;
}

Forward autograd_weight_norm(c10::DispatchKeySet keys, const Tensor& v, const Tensor& g, Dim dim, double eps) {
  if (has_tangent({&v, &g})) return WeightNormOp::python().call(v, g, dim, eps);
  c10::intrusive_ptr<WeightNormNode> node;
  if (torch::autograd::compute_requires_grad(v, g)) {
    node = make_node<WeightNormNode>(torch::autograd::collect_next_edges(v, g));
    node->save(v, g, dim, eps);
  }
  Forward out = [&] {
    at::AutoDispatchBelowADInplaceOrView guard;
    return WeightNormOp::op().redispatch(keys & c10::after_autograd_keyset, v, g, dim, eps);
  }();
  if (node) node->finish(out, false);
  return out;
}

Forward autograd_linear(c10::DispatchKeySet keys, const Tensor& x, const Tensor& v, const Tensor& g,
                        const MaybeTensor& bias, Dim dim, double eps, bool relu) {
  const Tensor& b = tensor_or_undefined(bias);
  if (has_tangent({&x, &v, &g, &b})) return LinearOp::python().call(x, v, g, bias, dim, eps, relu);
  c10::intrusive_ptr<LinearNode> node;
  if (torch::autograd::compute_requires_grad(x, v, g, b)) {
    node = make_node<LinearNode>(torch::autograd::collect_next_edges(x, v, g, b));
    node->save(v, g, dim, eps);
    node->biased_ = b.defined();
    node->x_ = SavedVariable(x, false);
  }
  Forward out = [&] {
    at::AutoDispatchBelowADInplaceOrView guard;
    return LinearOp::op().redispatch(keys & c10::after_autograd_keyset, x, v, g, bias, dim, eps, relu);
  }();
  if (node) node->finish(out, relu);
  return out;
}

Forward autograd_convolution(c10::DispatchKeySet keys, const Tensor& x, const Tensor& v, const Tensor& g,
                             const MaybeTensor& bias, Ints stride, Ints padding, Ints dilation, bool transposed,
                             Ints output_padding, int64_t groups, Dim dim, double eps, bool relu) {
  const Tensor& b = tensor_or_undefined(bias);
  if (has_tangent({&x, &v, &g, &b})) {
    return ConvolutionOp::python().call(x, v, g, bias, stride, padding, dilation, transposed, output_padding, groups, dim,
                                        eps, relu);
  }
  c10::intrusive_ptr<ConvolutionNode> node;
  if (torch::autograd::compute_requires_grad(x, v, g, b)) {
    node = make_node<ConvolutionNode>(torch::autograd::collect_next_edges(x, v, g, b));
    node->save(v, g, dim, eps);
    node->x_ = SavedVariable(x, false);
    node->stride_ = stride.vec(), node->padding_ = padding.vec(), node->dilation_ = dilation.vec();
    node->output_padding_ = output_padding.vec(), node->transposed_ = transposed, node->groups_ = groups;
  }
  Forward out = [&] {
    at::AutoDispatchBelowADInplaceOrView guard;
    return ConvolutionOp::op().redispatch(keys & c10::after_autograd_keyset, x, v, g, bias, stride, padding, dilation,
                                          transposed, output_padding, groups, dim, eps, relu);
  }();
  if (node) node->finish(out, relu);
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(wnfused, CPU, m) {
  m.impl("weight_norm", cpu_weight_norm);
  m.impl("weight_norm_backward", cpu_weight_norm_backward);
  m.impl("model_weights", cpu_model_weights);
  m.impl("model_weights_backward", cpu_model_weights_backward);
  m.impl("linear", cpu_linear);
  m.impl("linear_backward", cpu_linear_backward);
  m.impl("convolution", cpu_convolution);
  m.impl("convolution_backward", cpu_convolution_backward);
}

TORCH_LIBRARY_IMPL(wnfused, AutogradCPU, m) {
  m.impl("weight_norm", autograd_weight_norm);
  m.impl("linear", autograd_linear);
  m.impl("convolution", autograd_convolution);
}

TORCH_LIBRARY_IMPL(wnfused, AutogradCUDA, m) {
  m.impl("linear", autograd_linear);
  m.impl("convolution", autograd_convolution);
}

}  // namespace wnfused

extern "C" void wnfused_choose_native(bool chosen) { wnfused::native_chosen = chosen; }
