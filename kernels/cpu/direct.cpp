#include "direct.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <vector>

#include "direct_copies.h"
#include "direct_shape.h"
#include "tile.h"

namespace wnfused {
namespace {

constexpr int64_t kSmallWeight = 65536;  // elements of a weight that stays in cache from image to image

// The layout of the filters: filter r, channel c, tap t is at r * row + c * channel + t, or with the taps in reverse.
struct Filters {
  const float* data;
  int64_t row, channel;
  bool reversed;
};

struct Epilogue {
  const float *scale = nullptr, *shift = nullptr;
  bool relu = false;
};

struct Convolution {
  const Shape& s;
  Filters filters;
  Epilogue epilogue;
  Copies copies{s};
  std::vector<Step> taps;

  Convolution(const Shape& shape, const Filters& f, const Epilogue& e) : s(shape), filters(f), epilogue(e) {
    for (int64_t t = 0; t < s.taps(); ++t)
      taps.push_back({f.reversed ? s.taps() - 1 - t : t, copies.tap(t / s.kernel_w, t % s.kernel_w)});
  }

  // Computes rows [begin, end) of the outputs of some images from their copies. A sum is split into chunks of channels,
  // because one long chain of additions would lose digits.
  void run(float* out, const float* ready, int64_t images, int64_t begin, int64_t end) const {
    const int64_t chunk = std::max<int64_t>(1, kChain / s.taps());
    if (by_channel()) {
      for (int64_t c = 0; c < s.channels; c += chunk)
        for_blocks(images, begin, end, [&](const Block& block) { add(out, ready, block, c, chunk); });
    } else {
      for_blocks(images, begin, end, [&](const Block& block) {
        for (int64_t c = 0; c < s.channels; c += chunk) add(out, ready, block, c, chunk);
      });
    }
  }

  // Large filters whose channels are further apart in memory than their rows are processed a few channels at a time for
  // all rows, so that consecutive reads are close together.
  bool by_channel() const { return filters.channel > filters.row && s.rows * s.channels * s.taps() > kSmallWeight; }

 private:
  struct Block {
    int64_t image, pixel, count, row, rows;
  };

  // All rows for a few pixels at a time, so that their part of the copies stays in cache.
  template <typename Body>
  void for_blocks(int64_t images, int64_t begin, int64_t end, const Body& body) const {
    const int64_t pixels = s.out_pixels(), block = block_vectors(pixels) * kVec;
    for (int64_t n = 0; n < images; ++n)
      for (int64_t q = 0; q < pixels; q += block) {
        const int64_t count = std::min(block, pixels - q);
        for_row_blocks(begin, end, most_rows(vectors_of(count)),
                       [&](int64_t r, int64_t rows) { body(Block{n, q, count, r, rows}); });
      }
  }

  void add(float* out, const float* ready, const Block& at, int64_t channel, int64_t chunk) const {
    const bool last = channel + chunk >= s.channels;
    const Walk walk{.outer = last ? s.channels - channel : chunk,
                    .a_outer = filters.channel,
                    .b_outer = copies.channel(),
                    .begin = taps.data(),
                    .end = taps.data() + taps.size(),
                    .fetch = by_channel() ? at.rows * s.taps() : 0};
    const auto of_row = [&](const float* p) { return last && p ? p + at.row : nullptr; };
    Tile tile{.a = filters.data + at.row * filters.row + channel * filters.channel,
              .b = ready + at.image * copies.image() + channel * copies.channel(),
              .a_row = filters.row,
              .places = {},
              .out = out + (at.image * s.rows + at.row) * s.out_pixels() + at.pixel,
              .out_row = s.out_pixels(),
              .count = at.count,
              .add = channel > 0,
              .scale = of_row(epilogue.scale),
              .shift = of_row(epilogue.shift),
              .relu = last && epilogue.relu};
    const int vectors = vectors_of(at.count);
    for (int j = 0; j < vectors; ++j) tile.places[j] = copies.pixel(at.pixel + j * kVec);
    run_tile(static_cast<int>(at.rows), vectors, tile, walk);
  }
};

// The whole convolution. Threads share the images or, if there are too few images, the rows of each image. in_scale scales
// the channels of the input while they are copied.
void convolve(float* out, const float* in, const float* in_scale, const Shape& s, const Filters& filters,
              const Epilogue& epilogue) {
  const Convolution convolution(s, filters, epilogue);
  const int64_t image = convolution.copies.image();
  const int64_t splits = std::clamp<int64_t>(at::get_num_threads() / s.batch, 1, (s.rows + kMostRows - 1) / kMostRows);
  const c10::ArrayRef<float> all(in, s.batch * s.channels * s.pixels());
  const int64_t group = splits == 1 && convolution.by_channel() ? std::max<int64_t>(1, kGroup / image) : 1;
  at::parallel_for(0, s.batch * splits, 1, [&](int64_t task, int64_t end) {
    const int64_t most = std::min(group, end - task);
    const Memory ready = borrow(kCopies, most * image + kMostVectors * kVec);
    for (int64_t i = 0; i < most; ++i) convolution.copies.clear_padding(ready.get() + i * image);
    while (task < end) {
      const int64_t n = task / splits, split = task % splits, images = std::min(most, end - task);
      for (int64_t i = 0; i < images; ++i)
        convolution.copies.write(ready.get() + i * image, in + (n + i) * s.channels * s.pixels(), in_scale, all);
      convolution.run(out + n * s.rows * s.out_pixels(), ready.get(), images, s.rows * split / splits,
                      s.rows * (split + 1) / splits);
      task += images;
    }
  });
}

}  // namespace

Tensor direct_convolution(const Tensor& x, const Tensor& v, const Tensor& g, const Tensor& norms, const Tensor& bias,
                          const Geometry& geometry, bool relu) {
  const Shape s = shape_of(x, v, geometry);
  Tensor y = x.dim() == 3 ? at::empty({s.batch, s.rows, s.out_w}, x.options())
                          : at::empty({s.batch, s.rows, s.out_h, s.out_w}, x.options());
  const std::vector<float> scales = scales_of(g, norms);
  const Tensor shift = bias.defined() ? bias.contiguous() : bias;
  const Epilogue epilogue{scales.data(), shift.defined() ? shift.const_data_ptr<float>() : nullptr, relu};
  const int64_t row = s.channels * s.taps();
  convolve(y.mutable_data_ptr<float>(), x.const_data_ptr<float>(), nullptr, s,
           {v.const_data_ptr<float>(), row, s.taps(), false}, epilogue);
  return y;
}

Tensor direct_input_gradient(const Tensor& dy_any, const Tensor& x, const Tensor& v, const Tensor& g, const Tensor& norms,
                             const Geometry& geometry) {
  const Shape s = shape_of(x, v, geometry);
  const Tensor dy = dy_any.contiguous();
  Tensor dx = at::empty_like(x);
  const std::vector<float> scales = scales_of(g, norms);
  convolve(dx.mutable_data_ptr<float>(), dy.const_data_ptr<float>(), scales.data(), s.transposed(),
           {v.const_data_ptr<float>(), s.taps(), s.channels * s.taps(), true}, {});
  return dx;
}

}  // namespace wnfused
