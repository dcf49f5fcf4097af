// Shared by direct.cpp and direct_weight.cpp: the shape, the gain of each channel, and the scratch memory of a thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <vector>

#include "kernels.h"
#include "row.h"

namespace wnfused {

constexpr int64_t kChain = 256;  // products in one chain of additions; longer chains lose digits
constexpr int64_t kGroup = 1 << 19;  // floats that the copies of a group of images may take, to stay in cache

// A convolution of images [channels, height, width] with `rows` filters of [channels, kernel_h, kernel_w]. Stretched
// images have stretch - 1 zeros between pixels. A signal is an image one row high.
struct Shape {
  int64_t batch, channels, height, width, rows, kernel_h, kernel_w, pad_h, pad_w, dilation_h, dilation_w;
  int64_t stride_h, stride_w, stretch_h, stretch_w, out_h, out_w;

  int64_t reach_h() const { return (kernel_h - 1) * dilation_h; }
  int64_t reach_w() const { return (kernel_w - 1) * dilation_w; }
  int64_t pixels() const { return height * width; }
  int64_t out_pixels() const { return out_h * out_w; }
  int64_t taps() const { return kernel_h * kernel_w; }
  bool stretched() const { return stretch_h > 1 || stretch_w > 1; }

  // The convolution that computes dx from dy: channels exchanged, filters rotated by 180 degrees, strides stretched.
  Shape transposed() const {
    Shape t = *this;
    t.channels = rows, t.height = out_h, t.width = out_w, t.rows = channels, t.out_h = height, t.out_w = width;
    t.pad_h = reach_h() - pad_h, t.pad_w = reach_w() - pad_w;
    t.stride_h = t.stride_w = 1, t.stretch_h = stride_h, t.stretch_w = stride_w;
    return t;
  }
};

inline Shape shape_of(at::IntArrayRef x, at::IntArrayRef v, const Geometry& g) {
  const bool flat = x.size() == 3;
  const auto first = [&](at::IntArrayRef sizes, int64_t height) { return flat ? height : sizes[0]; };
  Shape s{.batch = x[0],
          .channels = x[1],
          .height = flat ? 1 : x[2],
          .width = x.back(),
          .rows = v[0],
          .kernel_h = flat ? 1 : v[2],
          .kernel_w = v.back(),
          .pad_h = first(g.padding, 0),
          .pad_w = g.padding.back(),
          .dilation_h = first(g.dilation, 1),
          .dilation_w = g.dilation.back(),
          .stride_h = first(g.stride, 1),
          .stride_w = g.stride.back(),
          .stretch_h = 1,
          .stretch_w = 1,
          .out_h = 0,
          .out_w = 0};
  s.out_h = (s.height + 2 * s.pad_h - s.reach_h() - 1) / s.stride_h + 1;
  s.out_w = (s.width + 2 * s.pad_w - s.reach_w() - 1) / s.stride_w + 1;
  return s;
}

inline Shape shape_of(const Tensor& x, const Tensor& v, const Geometry& g) { return shape_of(x.sizes(), v.sizes(), g); }

inline std::vector<float> scales_of(const Tensor& g, const Tensor& norms) {
  const Tensor gains = g.contiguous();
  const float *gp = gains.const_data_ptr<float>(), *n = norms.const_data_ptr<float>();
  std::vector<float> s(norms.numel());
  for (size_t r = 0; r < s.size(); ++r) s[r] = over(gp[r], n[r]);
  return s;
}

// Scratch memory of a thread that is kept between calls, because page faults on new memory would cost more than filling it.
// Larger blocks are freed after each call.
enum Place { kCopies, kPanels, kSums, kRows, kPlaces };
constexpr int64_t kKept = 1 << 22;  // floats per scratch buffer

struct Free {
  bool owned;
  void operator()(float* p) const {
    if (owned) std::free(p);
  }
};
using Memory = std::unique_ptr<float[], Free>;

inline Memory allocate(int64_t size) {
  constexpr size_t line = 64;  // a load that starts at a cache line does not cross one
  void* p = std::aligned_alloc(line, (size * sizeof(float) + line - 1) / line * line);
  TORCH_CHECK(p, "wnfused: no memory for a convolution's copies (", size, " floats)");
  return Memory(static_cast<float*>(p), Free{true});
}

inline Memory borrow(Place place, int64_t size) {
  if (size > kKept) return allocate(size);
  struct Block {
    Memory memory;
    int64_t size = 0;
  };
  thread_local std::array<Block, kPlaces> blocks;
  Block& block = blocks[place];
  if (block.size < size) block = {allocate(size), size};
  return Memory(block.memory.get(), Free{false});
}

}  // namespace wnfused
