// The copies of an image that the direct convolutions read.
#pragma once

#include <c10/util/ArrayRef.h>

#include <algorithm>

#include "direct_shape.h"
#include "tile.h"

namespace wnfused {

inline void clear(float* to, int64_t n) {
  for_lanes<float>(n, [&](int64_t i, auto count) { store_lane(to + i, Vec(0), count); });
}

// Copies of each channel in which every tap reads whole vectors of output pixels. One padded copy, where a vector of
// pixels lies in one row of the output; otherwise one copy for each column of the kernel, shifted by it, in rows
// exactly as long as the output's, so that vectors run on across rows; with a stride one copy for each tap, of just
// what it reads.
struct Copies {
  const Shape& shape;
  bool padded = !shape.strided() && (shape.out_w % kVec == 0 || shape.out_h == 1);
  int64_t count = padded ? 1 : shape.strided() ? shape.taps() : shape.kernel_w;
  int64_t line = padded ? shape.out_w + shape.reach_w() : shape.out_w;
  int64_t lines = shape.strided() ? shape.out_h : shape.out_h + shape.reach_h(), plane = lines * line;

  int64_t channel() const { return count * plane; }
  int64_t image() const { return shape.channels * channel(); }

  int64_t tap(int64_t i, int64_t j) const {
    if (shape.strided()) return (i * shape.kernel_w + j) * plane;
    return i * shape.dilation_h * line + (padded ? j * shape.dilation_w : j * plane);
  }

  int64_t pixel(int64_t q) const { return padded ? q / shape.out_w * line + q % shape.out_w : q; }

  // What write() leaves alone, because it is the same for every image.
  void clear_padding(float* to) const {
    if (shape.strided() || shape.stretched()) return clear(to, image());
    for (int64_t j = 0; j < count; ++j, to += plane) {
      const Window at = window_of(j);
      for (int64_t c = 0; c < shape.channels; ++c) clear_around(to + c * channel(), at);
    }
  }

  // The channels of one image, scaled. `all` are the images it lies among.
  void write(float* to, const float* from, const float* scale, c10::ArrayRef<float> all) const {
    if (shape.strided() || shape.stretched()) return write_spaced(to, from, scale);
    for (int64_t j = 0; j < count; ++j, to += plane) {
      const Window at = window_of(j);
      const Vec mask = mask_of(at);
      for (int64_t c = 0; c < shape.channels; ++c)
        write_plane(to + c * channel(), from + c * shape.pixels(), scale ? scale[c] : 1.0f, at, mask, all);
    }
  }

 private:
  // The part of a plane that is not padding: to[row, w] = from[row - pad_h, w + shift].
  struct Window {
    int64_t top, bottom, left, right, shift;
  };

  Window window_of(int64_t copy) const {
    const int64_t shift = copy * shape.dilation_w - shape.pad_w;
    const int64_t top = std::clamp<int64_t>(shape.pad_h, 0, lines), left = std::clamp<int64_t>(-shift, 0, line);
    return {top, std::clamp<int64_t>(shape.height + shape.pad_h, top, lines), left,
            std::clamp<int64_t>(shape.width - shift, left, line), shift};
  }

  void clear_around(float* to, const Window& at) const {
    if (at.left == at.right) return clear(to, plane);
    clear(to, at.top * line);
    clear(to + at.bottom * line, (lines - at.bottom) * line);
    clear_ends(to, at);
  }

  void clear_ends(float* to, const Window& at) const {
    if (at.left == 0 && at.right == line) return;
    for (int64_t row = at.top; row < at.bottom; ++row) {
      for (int64_t w = 0; w < at.left; ++w) to[row * line + w] = 0;
      for (int64_t w = at.right; w < line; ++w) to[row * line + w] = 0;
    }
  }

  void write_plane(float* to, const float* from, float scale, const Window& at, Vec mask,
                   c10::ArrayRef<float> all) const {
    if (at.left == at.right) return;
    from += (at.top - shape.pad_h) * shape.width + at.shift;
    to += at.top * line;
    const int64_t rows = at.bottom - at.top;
    if (line != shape.width) {
      for (int64_t row = 0; row < rows; ++row, to += line, from += shape.width)
        scale_row(to + at.left, from + at.left, scale, at.right - at.left);
    } else if (kVec % line == 0 && from >= all.begin() && from + rows * line + kVec <= all.end()) {
      for_lanes<float>(rows * line, [&](int64_t i, auto n) {
        store_lane(to + i, Vec::blendv(Vec(0), Vec::loadu(from + i) * Vec(scale), mask), n);
      });
    } else {  // one run over all rows; what ran across their ends is cleared after it
      scale_row(to + at.left, from + at.left, scale, (rows - 1) * line + at.right - at.left);
      clear_ends(to - at.top * line, at);
    }
  }

  // Pixels that are read or written some pixels apart, one by one: to[r, c] = from[r, c] with one side spaced.
  void write_spaced(float* to, const float* from, const float* scale) const {
    for (int64_t j = 0; j < count; ++j) {
      const int64_t i = shape.strided() ? j / shape.kernel_w : 0, column = shape.strided() ? j % shape.kernel_w : j;
      const Spacing rows =
          spacing(i * shape.dilation_h - shape.pad_h, shape.height, lines, shape.stride_h, shape.stretch_h);
      const Spacing columns =
          spacing(column * shape.dilation_w - shape.pad_w, shape.width, line, shape.stride_w, shape.stretch_w);
      for (int64_t c = 0; c < shape.channels; ++c) {
        const float factor = scale ? scale[c] : 1.0f;
        for (int64_t h = 0; h < rows.count; ++h) {
          const float* in = from + (c * shape.height + rows.from + h * rows.from_step) * shape.width + columns.from;
          float* out = to + c * channel() + j * plane + (rows.to + h * rows.to_step) * line + columns.to;
          for (int64_t w = 0; w < columns.count; ++w) out[w * columns.to_step] = factor * in[w * columns.from_step];
        }
      }
    }
  }

  // The pixels along one side that are not padding: where the first lies, how far apart they are, how many there are.
  struct Spacing {
    int64_t from, from_step, to, to_step, count;
  };

  // Place t of the output and place f of the input meet where t * stride + shift = f * stretch.
  static Spacing spacing(int64_t shift, int64_t size, int64_t out, int64_t stride, int64_t stretch) {
    const auto up = [](int64_t a, int64_t b) { return a <= 0 ? 0 : (a + b - 1) / b; };  // ceil(a / b), at least 0
    if (stretch > 1) {
      const int64_t first = up(shift, stretch), last = std::min(size, up(out + shift, stretch));
      return {first, 1, first * stretch - shift, stretch, std::max<int64_t>(0, last - first)};
    }
    const int64_t first = up(-shift, stride), last = std::min(out, up(size - shift, stride));
    return {first * stride + shift, stride, first, 1, std::max<int64_t>(0, last - first)};
  }

  // Where rows divide a vector, every vector of a run holds the same columns, and one mask clears what runs across the
  // ends of rows.
  Vec mask_of(const Window& at) const {
    float inside[kVec];
    for (int64_t i = 0; i < kVec; ++i) inside[i] = i % line >= at.left && i % line < at.right;
    return Vec::loadu(inside) != Vec(0);
  }
};

}  // namespace wnfused
