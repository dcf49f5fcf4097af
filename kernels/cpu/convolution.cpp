// Convolutions: each product takes the route that plan.h chooses.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/threshold_backward.h>

#include <array>
#include <vector>

#include "direct.h"
#include "kernels.h"
#include "patches.h"
#include "plan.h"
#include "row.h"
#include "weight_norm.h"

namespace wnfused {
namespace {

template <typename T>
std::vector<T> channel_scales(const Tensor& g, const Tensor& norms, int64_t channels) {
  const Tensor gc = g.contiguous();
  const T *gp = gc.const_data_ptr<T>(), *np = norms.const_data_ptr<T>();
  std::vector<T> s(channels);
  const int64_t step = norms.numel() == 1 ? 0 : 1;  // a single norm applies to every channel
  for (int64_t c = 0; c < channels; ++c) s[c] = over(gp[c * step], np[c * step]);
  return s;
}

template <typename T>
inline void affine_row(T* to, const T* from, int64_t n, T scale, T shift, bool relu) {
  const Lane<T> s(scale), b(shift), zero(0);
  for_lanes<T>(n, [&](int64_t i, auto count) {
    const Lane<T> z = at::vec::fmadd(load_lane(from + i, count), s, b);
    store_lane(to + i, relu ? at::vec::maximum(z, zero) : z, count);
  });
}

template <typename T>
inline void affine_channels(T* to, const T* from, int64_t channels, const T* s, const T* shift, bool relu) {
  const Lane<T> zero(0);
  for_lanes<T>(channels, [&](int64_t c, auto count) {
    Lane<T> z = load_lane(from + c, count) * load_lane(s + c, count);
    if (shift) z = z + load_lane(shift + c, count);
    store_lane(to + c, relu ? at::vec::maximum(z, zero) : z, count);
  });
}

// to = from * s[channel] (+ bias[channel], ReLU), in the memory order of `from`: contiguous or channels-last.
void scale_channels(Tensor& to, const Tensor& from, const Tensor& g, const Tensor& norms, const Tensor& bias, bool relu) {
  const int64_t channels = from.size(1), pixels = from.numel() / std::max<int64_t>(1, from.size(0) * channels);
  AT_DISPATCH_FLOATING_TYPES(from.scalar_type(), "wn_convolution", [&] {
    const auto s = channel_scales<scalar_t>(g, norms, channels);
    const scalar_t* shift = bias.defined() ? bias.const_data_ptr<scalar_t>() : nullptr;
    const scalar_t* in = from.const_data_ptr<scalar_t>();
    scalar_t* out = to.mutable_data_ptr<scalar_t>();
    if (from.is_contiguous()) {
      const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, pixels));
      at::parallel_for(0, from.size(0) * channels, grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t c = i % channels;
          affine_row(out + i * pixels, in + i * pixels, pixels, s[c], shift ? shift[c] : scalar_t(0), relu);
        }
      });
    } else {
      const int64_t grain = std::max<int64_t>(1, 16384 / channels);
      at::parallel_for(0, from.size(0) * pixels, grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          affine_channels(out + i * channels, in + i * channels, channels, s.data(), shift, relu);
      });
    }
  });
}

// t itself if its channels are outermost or innermost in memory, else a contiguous copy.
Tensor in_order(const Tensor& t) {
  const auto format = t.suggest_memory_format();
  return t.is_contiguous(format) ? t : t.contiguous(format);
}

Tensor scaled(const Tensor& t_any, const Tensor& g, const Tensor& norms) {
  const Tensor t = in_order(t_any);
  Tensor out = at::empty_like(t);
  scale_channels(out, t, g, norms, Tensor(), false);
  return out;
}

Tensor convolve(const Tensor& x, const Tensor& w, const Tensor& bias, const Geometry& g) {
  const MaybeTensor b = bias.defined() ? MaybeTensor(bias) : std::nullopt;
  return at::convolution(x, w, b, g.stride, g.padding, g.dilation, g.transposed, g.output_padding, g.groups);
}

std::tuple<Tensor, Tensor, Tensor> convolve_backward(const Tensor& dy, const Tensor& x, const Tensor& w, const Geometry& g,
                                                     std::array<bool, 3> mask) {
  const std::array<int64_t, 1> channels{dy.size(1)};
  return at::convolution_backward(dy, x, w, at::IntArrayRef(channels), g.stride, g.padding, g.dilation, g.transposed,
                                  g.output_padding, g.groups, mask);
}

Tensor bias_gradient(const Tensor& dy) {
  std::vector<int64_t> dims{0};
  for (int64_t d = 2; d < dy.dim(); ++d) dims.push_back(d);
  return dy.sum(dims, false, at::toOpMathType(dy.scalar_type()));
}

Tensor input_gradient(Route route, const Tensor& dy, const Tensor& x, const Tensor& v, const Tensor& g, const Tensor& norms,
                      const Geometry& geometry, Dim dim) {
  const auto from = [&](const Tensor& t, const Tensor& w) {
    return std::get<0>(convolve_backward(t, x, w, geometry, {true, false, false}));
  };
  switch (route) {
    case Route::kDirect:
      return direct_input_gradient(dy, x, v, g, norms, geometry);
    case Route::kPatches:
      return matmul_input_gradient(scaled(dy, g, norms), x, v, geometry);
    case Route::kScaledOutput:
      return from(scaled(dy, g, norms), v);
    case Route::kScaledInput:
      return scaled(from(dy, v), g, norms);
    case Route::kScaledWeight:
      break;
  }
  return from(dy, normalized(v, g, norms, dim, x.scalar_type()));
}

}  // namespace

std::tuple<Tensor, Tensor> convolution(const Tensor& x, const Tensor& v, const Tensor& g, const MaybeTensor& bias_any,
                                       const Geometry& geometry, Dim dim, double eps, bool relu) {
  const Tensor bias = bias_any.has_value() && bias_any->defined() ? bias_any->to(x.scalar_type()) : Tensor();
  const Problem problem = problem_of(x, v, g, geometry, dim);
  Route route = route_of(Product::kOutput, problem);
  Tensor y, norms;
  if (route != Route::kScaledWeight) {
    norms = row_norms(v, g, dim, eps);
    if (!all_moderate(norms)) route = Route::kScaledWeight;
  }
  switch (route) {
    case Route::kDirect:
      return {direct_convolution(x, v, g, norms, bias, geometry, relu), norms};
    case Route::kPatches:
    case Route::kScaledOutput:
      y = route == Route::kPatches ? matmul_convolve(x, v, geometry, problem.y)
                                   : in_order(convolve(x, v, Tensor(), geometry));
      scale_channels(y, y, g, norms, bias.defined() ? bias.contiguous() : bias, relu);
      return {y, norms};
    case Route::kScaledInput:
      y = convolve(scaled(x, g, norms), v, bias, geometry);
      break;
    case Route::kScaledWeight:
      Tensor w;
      std::tie(w, norms) = normalize(v, g, dim, eps, x.scalar_type());
      y = convolve(x, w, bias, geometry);
  }
  return {relu ? y.relu_() : y, norms};
}

Gradients convolution_backward(const Tensor& dy_any, const Tensor& x, const Tensor& v, const Tensor& g,
                               const Tensor& norms, const MaybeTensor& y, const Geometry& geometry, Dim dim,
                               std::array<bool, 4> mask) {
  Tensor dy = dy_any;
  if (y.has_value() && y->defined()) dy = at::threshold_backward(dy, *y, 0);
  const bool want_dw = mask[1] || mask[2], want_db = mask[3];
  const Problem problem = problem_of(x, v, g, geometry, dim);
  const bool moderate = all_moderate(norms);
  const auto route = [&](Product product) { return moderate ? route_of(product, problem) : Route::kScaledWeight; };
  const Route dx_route = route(Product::kInputGradient), dw_route = route(Product::kWeightGradient);
  // Torch sums the bias gradient together with dw at no cost, but in dy's dtype.
  const bool db_beside_dw = want_db && want_dw && dy.scalar_type() == at::toOpMathType(dy.scalar_type());
  Tensor dx, dw, dv, dg, db;
  if (want_dw && dw_route == Route::kDirect) {
    std::tie(dv, dg, db) = direct_weight_gradients(dy, x, v, g, norms, geometry, mask);
  } else if (want_dw && dw_route == Route::kPatches) {
    dw = matmul_weight_gradient(dy, x, v, geometry);
  } else if (want_dw) {
    std::tie(std::ignore, dw, db) = convolve_backward(dy, x, v, geometry, {false, true, db_beside_dw});
  }
  if (want_dw && dw.defined()) std::tie(dv, dg) = consume_dw(dw, v, g, norms, dim, mask[1], mask[2]);
  if (mask[0]) dx = in_strides_of(x, input_gradient(dx_route, dy, x, v, g, norms, geometry, dim));
  if (want_db && !db.defined()) db = bias_gradient(dy);
  return {dx, dv, dg, db};
}

}  // namespace wnfused
