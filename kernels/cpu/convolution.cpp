// Convolutions: those of direct.h where they apply; elsewhere torch's own kernels do the sums, and the gain goes to whichever
// is smallest of the weight, the output and, where the norm runs along the input channels, the input.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <vector>

#include "direct.h"
#include "kernels.h"
#include "row.h"
#include "weight_norm.h"

namespace wnfused {
namespace {

enum class Side { kWeight, kOutput, kInput };

// Scaling an activation takes more passes, forward and backward, than writing the scaled weight does, and a second call of
// the backward convolution, whose launch alone outweighs a small weight.
constexpr int64_t kPasses = 4, kSmallWeight = 65536;

bool on_output(const Geometry& geometry, Dim dim) {
  return !dim || (geometry.transposed ? *dim == 1 && geometry.groups == 1 : *dim == 0);
}

bool on_input(const Geometry& geometry, Dim dim) {
  return !dim || (geometry.transposed ? *dim == 0 : *dim == 1 && geometry.groups == 1);
}

// The side that takes the gain, from sizes alone. 16-bit results would be rounded once more if they were scaled after the
// sum, and so always take the scaled weight.
Side choose(const Tensor& x, const Tensor& v, const Tensor& g, int64_t output, const Geometry& geometry, Dim dim) {
  const bool wide = v.scalar_type() == at::kFloat || v.scalar_type() == at::kDouble;
  if (!wide || x.scalar_type() != v.scalar_type() || g.scalar_type() != v.scalar_type()) return Side::kWeight;
  if (v.numel() < kSmallWeight) return Side::kWeight;
  if (on_output(geometry, dim) && kPasses * output < v.numel()) return Side::kOutput;
  if (on_input(geometry, dim) && kPasses * x.numel() < v.numel()) return Side::kInput;
  return Side::kWeight;
}

// The output's shape, from shapes alone: the choice is made before the convolution runs.
std::vector<int64_t> output_shape(const Tensor& x, const Tensor& v, const Geometry& g) {
  std::vector<int64_t> shape{x.size(0), g.transposed ? v.size(1) * g.groups : v.size(0)};
  for (int64_t d = 2; d < x.dim(); ++d) {
    const int64_t i = d - 2, reach = g.dilation[i] * (v.size(d) - 1);
    shape.push_back(g.transposed ? (x.size(d) - 1) * g.stride[i] - 2 * g.padding[i] + reach + g.output_padding[i] + 1
                                 : (x.size(d) + 2 * g.padding[i] - reach - 1) / g.stride[i] + 1);
  }
  return shape;
}

template <typename T>
std::vector<T> channel_scales(const Tensor& g, const Tensor& norms, int64_t channels) {
  const Tensor gc = g.contiguous();
  const T *gp = gc.const_data_ptr<T>(), *np = norms.const_data_ptr<T>();
  std::vector<T> s(channels);
  const int64_t step = norms.numel() == 1 ? 0 : 1;  // one norm for everything serves every channel
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

// to = from * s[channel] (+ bias[channel], ReLU), in from's own memory order: contiguous or channels-last.
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

// t itself if its channels are all outermost or all innermost in memory, else a contiguous copy.
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

// One signal shorter than the weight's rows, as vocoders have it: as a matmul with the signal's patches the sums take two
// thirds of the time that the convolution needs, which reorders a large weight and its gradient on every call.
bool as_matmul(const Tensor& x, const Tensor& v, const Geometry& g) {
  return !g.transposed && g.groups == 1 && x.size(0) == 1 && x.dim() <= 4 && x.is_contiguous() && v.is_contiguous();
}

// The geometry of patches: a one-dimensional signal is an image one row high.
struct Patches {
  int64_t channels, height, width, kernel_h, kernel_w, out_h, out_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;

  Patches(const Tensor& x, const Tensor& v, const Geometry& g, at::IntArrayRef out) {
    const bool flat = x.dim() == 3;
    const auto first = [&](at::IntArrayRef sizes, int64_t height) { return flat ? height : sizes[0]; };
    channels = x.size(1);
    height = flat ? 1 : x.size(2), width = x.size(-1);
    kernel_h = flat ? 1 : v.size(2), kernel_w = v.size(-1);
    out_h = flat ? 1 : out[2], out_w = out.back();
    stride_h = first(g.stride, 1), stride_w = g.stride.back();
    pad_h = first(g.padding, 0), pad_w = g.padding.back();
    dilation_h = first(g.dilation, 1), dilation_w = g.dilation.back();
  }

  int64_t pixels() const { return out_h * out_w; }
  int64_t size() const { return channels * kernel_h * kernel_w; }

  // body(place in the image, place in the patch) for every element of pixel's patch in one channel that is not padding.
  template <typename Body>
  void visit(int64_t pixel, int64_t channel, const Body& body) const {
    const int64_t top = pixel / out_w * stride_h - pad_h, left = pixel % out_w * stride_w - pad_w;
    for (int64_t i = 0; i < kernel_h; ++i) {
      const int64_t y = top + i * dilation_h;
      if (y < 0 || y >= height) continue;
      for (int64_t j = 0; j < kernel_w; ++j) {
        const int64_t x = left + j * dilation_w;
        if (x >= 0 && x < width) body((channel * height + y) * width + x, (channel * kernel_h + i) * kernel_w + j);
      }
    }
  }
};

Tensor patches(const Tensor& x, const Patches& at) {  // [pixels, channels * kernel]
  Tensor out = at::zeros({at.pixels(), at.size()}, x.options());
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "wn_convolution", [&] {
    const scalar_t* from = x.const_data_ptr<scalar_t>();
    scalar_t* to = out.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, at.pixels(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p)
        for (int64_t c = 0; c < at.channels; ++c)
          at.visit(p, c, [&](int64_t image, int64_t patch) { to[p * at.size() + patch] = from[image]; });
    });
  });
  return out;
}

// The sum of all patches, each at its place: the transpose of patches().
Tensor unpatched(const Tensor& columns, const Tensor& x, const Patches& at) {
  Tensor dx = at::zeros(x.sizes(), x.options());
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "wn_convolution", [&] {
    const scalar_t* from = columns.const_data_ptr<scalar_t>();
    scalar_t* to = dx.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, at.channels, 16, [&](int64_t begin, int64_t end) {
      for (int64_t p = 0; p < at.pixels(); ++p)
        for (int64_t c = begin; c < end; ++c)
          at.visit(p, c, [&](int64_t image, int64_t patch) { to[image] += from[p * at.size() + patch]; });
    });
  });
  return dx;
}

Tensor matmul_convolve(const Tensor& x, const Tensor& v, const Geometry& g, at::IntArrayRef shape) {
  return v.view({v.size(0), -1}).mm(patches(x, Patches(x, v, g, shape)).t()).view(shape);
}

Tensor matmul_input_gradient(const Tensor& dy, const Tensor& x, const Tensor& v, const Geometry& g) {
  const Tensor columns = dy.reshape({dy.size(1), -1}).t().mm(v.view({v.size(0), -1}));
  return unpatched(columns, x, Patches(x, v, g, dy.sizes()));
}

Tensor matmul_weight_gradient(const Tensor& dy, const Tensor& x, const Tensor& v, const Geometry& g) {
  return dy.reshape({dy.size(1), -1}).mm(patches(x, Patches(x, v, g, dy.sizes()))).view(v.sizes());
}

Tensor bias_gradient(const Tensor& dy) {
  std::vector<int64_t> dims{0};
  for (int64_t d = 2; d < dy.dim(); ++d) dims.push_back(d);
  return dy.sum(dims, false, at::toOpMathType(dy.scalar_type()));
}

}  // namespace

std::tuple<Tensor, Tensor> convolution(const Tensor& x, const Tensor& v, const Tensor& g, const MaybeTensor& bias_any,
                                       const Geometry& geometry, Dim dim, double eps, bool relu) {
  const Tensor bias = bias_any.has_value() && bias_any->defined() ? bias_any->to(x.scalar_type()) : Tensor();
  const auto shape = output_shape(x, v, geometry);
  const Side side = choose(x, v, g, c10::multiply_integers(shape), geometry, dim);
  const bool direct = is_direct(x, v, g, geometry, dim, /*backward=*/false);
  Tensor y, norms;
  if (direct || side != Side::kWeight) norms = row_norms(v, g, dim, eps);
  if (direct && all_moderate(norms)) {
    return {direct_convolution(x, v, g, norms, bias, geometry, relu), norms};
  }
  if (side == Side::kOutput && all_moderate(norms)) {
    y = as_matmul(x, v, geometry) ? matmul_convolve(x, v, geometry, shape)
                                  : in_order(convolve(x, v, Tensor(), geometry));
    scale_channels(y, y, g, norms, bias.defined() ? bias.contiguous() : bias, relu);
    return {y, norms};
  }
  if (side == Side::kInput && all_moderate(norms)) {
    y = convolve(scaled(x, g, norms), v, bias, geometry);
  } else {
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
  if ((mask[0] || want_dw) && is_direct(x, v, g, geometry, dim, /*backward=*/true) &&
      all_moderate(norms)) {
    auto gradients = direct_convolution_backward(dy, x, v, g, norms, geometry, mask);
    if (want_db && !want_dw) std::get<3>(gradients) = bias_gradient(dy);
    return gradients;
  }
  Side side = choose(x, v, g, dy.numel(), geometry, dim);
  if (side != Side::kWeight && !all_moderate(norms)) side = Side::kWeight;
  // Torch sums the bias gradient beside dw for free, but in dy's own type.
  const bool db_beside_dw = want_db && want_dw && dy.scalar_type() == at::toOpMathType(dy.scalar_type());
  Tensor dx, dw, dv, dg, db;
  if (side == Side::kWeight) {
    if (mask[0] || want_dw) {
      const Tensor w = normalized(v, g, norms, dim, x.scalar_type());
      std::tie(dx, dw, db) = convolve_backward(dy, x, w, geometry, {mask[0], want_dw, db_beside_dw});
    }
  } else if (side == Side::kOutput && as_matmul(x, v, geometry)) {
    if (mask[0]) dx = matmul_input_gradient(scaled(dy, g, norms), x, v, geometry);
    if (want_dw) dw = matmul_weight_gradient(dy, x, v, geometry);
    if (want_db) db = bias_gradient(dy);
  } else {
    if (mask[0]) {
      const Tensor gained = side == Side::kOutput ? scaled(dy, g, norms) : dy;
      dx = std::get<0>(convolve_backward(gained, x, v, geometry, {true, false, false}));
      if (side == Side::kInput) dx = scaled(dx, g, norms);
    }
    if (want_dw) std::tie(std::ignore, dw, db) = convolve_backward(dy, x, v, geometry, {false, true, db_beside_dw});
  }
  if (mask[0]) dx = in_strides_of(x, dx);
  if (want_dw) std::tie(dv, dg) = consume_dw(dw, v, g, norms, dim, mask[1], mask[2]);
  if (want_db && !db.defined()) db = bias_gradient(dy);
  return {dx, dv, dg, db};
}

}  // namespace wnfused
