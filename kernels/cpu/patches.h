// Convolution as a matmul with the patches of the image, for a single image or signal.
#pragma once

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include "kernels.h"

namespace wnfused {

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

  // Calls body(image index, patch index) for every element of the pixel's patch in one channel that is not padding.
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

inline Tensor patches(const Tensor& x, const Patches& at) {  // [pixels, channels * kernel]
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

// Adds all patches into the image: the transpose of patches().
inline Tensor unpatched(const Tensor& columns, const Tensor& x, const Patches& at) {
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

inline Tensor matmul_convolve(const Tensor& x, const Tensor& v, const Geometry& g, at::IntArrayRef shape) {
  return v.view({v.size(0), -1}).mm(patches(x, Patches(x, v, g, shape)).t()).view(shape);
}

inline Tensor matmul_input_gradient(const Tensor& dy, const Tensor& x, const Tensor& v, const Geometry& g) {
  const Tensor columns = dy.reshape({dy.size(1), -1}).t().mm(v.view({v.size(0), -1}));
  return unpatched(columns, x, Patches(x, v, g, dy.sizes()));
}

inline Tensor matmul_weight_gradient(const Tensor& dy, const Tensor& x, const Tensor& v, const Geometry& g) {
  return dy.reshape({dy.size(1), -1}).mm(patches(x, Patches(x, v, g, dy.sizes()))).view(v.sizes());
}

}  // namespace wnfused
