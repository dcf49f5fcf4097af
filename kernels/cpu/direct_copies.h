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

// Copies of each channel from which every tap reads whole vectors of output pixels. If a vector of pixels is always within
// one row of the output, this is one padded copy. Otherwise there is one shifted copy per column of the kernel, with rows of
// exactly the output's length, so that vectors can span rows.
struct Copies {
  const Shape& shape;
  bool padded = shape.out_w % kVec == 0 || shape.out_h == 1;
  int64_t count = padded ? 1 : shape.kernel_w;
  int64_t line = padded ? shape.out_w + shape.reach_w() : shape.out_w;
  int64_t lines = shape.out_h + shape.reach_h(), plane = lines * line;

  int64_t channel() const { return count * plane; }
  int64_t image() const { return shape.channels * channel(); }

  int64_t tap(int64_t i, int64_t j) const {
    return i * shape.dilation_h * line + (padded ? j * shape.dilation_w : j * plane);
  }

  int64_t pixel(int64_t q) const { return padded ? q / shape.out_w * line + q % shape.out_w : q; }

  // Zeroes the elements that write() does not touch, because they are zero for every image.
  void clear_padding(float* to) const {
    if (shape.stretched()) return clear(to, image());
    for (int64_t j = 0; j < count; ++j, to += plane) {
      const Window at = window_of(j);
      for (int64_t c = 0; c < shape.channels; ++c) clear_around(to + c * channel(), at);
    }
  }

  // Copies the scaled channels of one image. `all` is the memory of all images.
  void write(float* to, const float* from, const float* scale, c10::ArrayRef<float> all) const {
    if (shape.stretched()) return write_stretched(to, from, scale);
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
    } else {  // one run over all rows; elements beyond the ends of rows are cleared afterwards
      scale_row(to + at.left, from + at.left, scale, (rows - 1) * line + at.right - at.left);
      clear_ends(to - at.top * line, at);
    }
  }

  // Writes the pixels of a stretched image one by one; the zeros between them are already there.
  void write_stretched(float* to, const float* from, const float* scale) const {
    const Span rows = span(-shape.pad_h, shape.stretch_h, shape.height, lines);
    for (int64_t j = 0; j < count; ++j) {
      const Span columns = span(j * shape.dilation_w - shape.pad_w, shape.stretch_w, shape.width, line);
      for (int64_t c = 0; c < shape.channels; ++c)
        for (int64_t h = rows.begin; h < rows.end; ++h) {
          const float* in = from + (c * shape.height + h) * shape.width;
          float* out = to + c * channel() + j * plane + (rows.place + h * shape.stretch_h) * line + columns.place;
          for (int64_t w = columns.begin; w < columns.end; ++w)
            out[w * shape.stretch_w] = (scale ? scale[c] : 1) * in[w];
        }
    }
  }

  // The pixels f in [begin, end) along one side whose position in the copy, place + f * stretch, is in [0, size).
  struct Span {
    int64_t begin, end, place;
  };

  static Span span(int64_t shift, int64_t stretch, int64_t pixels, int64_t size) {
    const auto first_from = [&](int64_t n) { return n <= 0 ? 0 : std::min((n + stretch - 1) / stretch, pixels); };
    return {first_from(shift), first_from(size + shift), -shift};
  }

  // If the row length divides the vector length, every vector of a run holds the same columns, and one mask clears the
  // elements beyond the ends of rows.
  Vec mask_of(const Window& at) const {
    float inside[kVec];
    for (int64_t i = 0; i < kVec; ++i) inside[i] = i % line >= at.left && i % line < at.right;
    return Vec::loadu(inside) != Vec(0);
  }
};

}  // namespace wnfused
