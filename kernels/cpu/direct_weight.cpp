// The weight gradient of the direct convolutions: dw, and from it dv, dg and db.
#include "direct.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <vector>

#include "direct_shape.h"
#include "tile.h"

namespace wnfused {
namespace {

constexpr int64_t kManyRows = 128;  // the fewest filters for which gathering a panel is worth it

// dw = sum over images and pixels of dy times x. The vectors run along the channels of a padded copy of x in which channels
// are innermost; without dilation a run continues from tap to tap. A run is split into blocks, and dw is stored as
// [runs, blocks, rows, block], so that the tiles are written in memory order.
struct WeightGradient {
  const Shape& s;
  const float *dy, *x;
  int64_t line = (s.out_w - 1) * s.stride_w + s.reach_w() + 1, lines = (s.out_h - 1) * s.stride_h + s.reach_h() + 1;
  int64_t image = lines * line * s.channels;
  bool joined = s.dilation_w == 1;
  int64_t run = joined ? s.kernel_w * s.channels : s.channels, runs = joined ? s.kernel_h : s.taps();
  int64_t block = block_vectors(run) * kVec, blocks = (run + block - 1) / block;

  int64_t size() const { return runs * blocks * s.rows * block; }

  // Row r of dw as [taps, channels].
  void read_row(float* to, const float* dw, int64_t r) const {
    for (int64_t k = 0; k < runs; ++k)
      for (int64_t c = 0; c < run; c += block, dw += s.rows * block)
        std::copy_n(dw + r * block, std::min(block, run - c), to + k * run + c);
  }

  void copy(float* to, const float* from) const {
    const int64_t left = std::clamp<int64_t>(s.pad_w, 0, line),
                  right = std::clamp<int64_t>(s.width + s.pad_w, left, line);
    const int64_t skip = left - s.pad_w, c = s.channels;
    for (int64_t h = 0; h < lines; ++h) {
      float* out = to + h * line * c;
      const int64_t from_h = h - s.pad_h;
      if (from_h < 0 || from_h >= s.height) {
        std::fill(out, out + line * c, 0.0f);
        continue;
      }
      std::fill(out, out + left * c, 0.0f);
      at::vec::transpose_mxn<float>(from + from_h * s.width + skip, s.pixels(), out + left * c, c, static_cast<int>(c),
                                    static_cast<int>(right - left));
      std::fill(out + right * c, out + line * c, 0.0f);
    }
  }

  // dw of rows [begin, end) = the products of images [first, last)
  void sum(float* dw, int64_t first, int64_t last, int64_t begin, int64_t end) const {
    const int64_t group = std::clamp<int64_t>(kGroup / image, 1, last - first);
    const Memory copies = borrow(kCopies, group * image + kMostVectors * kVec);
    const Memory panels = borrow(kPanels, gathered() ? group * s.out_pixels() * block : 0);
    for (int64_t n = first; n < last; n += group) {
      const Images images{n, std::min(group, last - n), n == first};
      for (int64_t i = 0; i < images.count; ++i) copy(copies.get() + i * image, x + (n + i) * s.channels * s.pixels());
      float* to = dw;
      for (int64_t k = 0; k < runs; ++k)
        for (int64_t c = 0; c < run; c += block, to += s.rows * block) {
          const int64_t count = std::min(block, run - c);
          Columns columns{copies.get() + tap(k) * s.channels + c, image, s.stride_h * line * s.channels,
                          s.stride_w * s.channels};
          if (gathered()) columns = gather(panels.get(), columns, images.count, vectors_of(count));
          add_block(to, columns, count, images, begin, end);
        }
    }
  }

 private:
  struct Images {
    int64_t first, count;
    bool fresh;  // the first products of a sum
  };

  // The vectors of one block of columns, and their distances from pixel to pixel and image to image.
  struct Columns {
    const float* data;
    int64_t image, line, pixel;
  };

  // The start of the k-th run of taps in the copy, in pixels.
  int64_t tap(int64_t k) const {
    return joined ? k * s.dilation_h * line : k / s.kernel_w * s.dilation_h * line + k % s.kernel_w * s.dilation_w;
  }

  // If many rows share the vectors of a block, they are gathered first: in the copy they are a whole pixel (all its
  // channels) apart.
  bool gathered() const { return s.rows >= kManyRows && s.channels > kMostVectors * kVec; }

  Columns gather(float* panel, const Columns& from, int64_t images, int64_t vectors) const {
    float* to = panel;
    for (int64_t i = 0; i < images; ++i)
      for (int64_t h = 0; h < s.out_h; ++h)
        for (int64_t w = 0; w < s.out_w; ++w)
          for (int64_t j = 0; j < vectors; ++j, to += kVec)
            Vec::loadu(from.data + i * from.image + h * from.line + w * from.pixel + j * kVec).store(to);
    const int64_t pixel = vectors * kVec;
    return {panel, s.out_pixels() * pixel, s.out_w * pixel, pixel};
  }

  // A chain of additions covers part of a line, some lines of an image, or some images.
  void add_block(float* dw, const Columns& columns, int64_t count, const Images& images, int64_t begin,
                 int64_t end) const {
    const int64_t width = std::min(s.out_w, kChain), height = std::clamp<int64_t>(kChain / s.out_w, 1, s.out_h);
    const int64_t pixels = s.out_pixels(), together = std::max<int64_t>(1, kChain / pixels);
    std::vector<Step> steps;
    for (int64_t q = 0; q < width * height; ++q)
      steps.push_back({q, q / width * columns.line + q % width * columns.pixel});
    const int vectors = vectors_of(count);
    const auto add = [&](int64_t r, int64_t rows, int64_t i, int64_t h, int64_t w) {
      const int64_t length = std::min(height, s.out_h - h) * std::min(width, s.out_w - w);
      const Walk walk{.outer = std::min(together, images.count - i),
                      .a_outer = s.rows * pixels,
                      .b_outer = columns.image,
                      .begin = steps.data(),
                      .end = steps.data() + length};
      const Tile tile{.a = dy + ((images.first + i) * s.rows + r) * pixels + h * s.out_w + w,
                      .b = columns.data + i * columns.image + h * columns.line + w * columns.pixel,
                      .a_row = pixels,
                      .places = kAdjacent,
                      .out = dw + r * block,
                      .out_row = block,
                      .count = count,
                      .add = !images.fresh || i > 0 || h > 0 || w > 0};
      run_tile(static_cast<int>(rows), vectors, tile, walk);
    };
    for_row_blocks(begin, end, most_rows(vectors), [&](int64_t r, int64_t rows) {
      for (int64_t i = 0; i < images.count; i += together)
        for (int64_t h = 0; h < s.out_h; h += height)
          for (int64_t w = 0; w < s.out_w; w += width) add(r, rows, i, h, w);
    });
  }
};

double bias_gradient(const float* dy, int64_t row, const Shape& s) {
  double sum = 0;
  for (int64_t n = 0; n < s.batch; ++n) {
    Vec lanes(0);
    for_lanes<float>(s.out_pixels(), [&](int64_t i, auto count) {
      lanes = lanes + load_lane(dy + (n * s.rows + row) * s.out_pixels() + i, count);
    });
    sum += sum_lanes<float>(lanes);
  }
  return sum;
}

// Row r of dw, summed over the parts, as [channels, taps]; the caller provides memory for three rows.
const float* whole_row(const WeightGradient& gradient, const float* dw, int64_t parts, int64_t r, float* memory) {
  const int64_t taps = gradient.s.taps(), channels = gradient.s.channels, row = taps * channels;
  float *sum = memory, *other = memory + row, *turned = memory + 2 * row;
  gradient.read_row(sum, dw, r);
  for (int64_t p = 1; p < parts; ++p) {
    gradient.read_row(other, dw + p * gradient.size(), r);
    for_lanes<float>(row, [&](int64_t i, auto count) {
      store_lane(sum + i, load_lane(sum + i, count) + load_lane(other + i, count), count);
    });
  }
  at::vec::transpose_mxn<float>(sum, channels, turned, taps, static_cast<int>(taps), static_cast<int>(channels));
  return turned;
}

}  // namespace

// Threads share the images if those are larger than the weight, otherwise the rows of the weight. A part is a range of images
// that is summed separately.
std::tuple<Tensor, Tensor, Tensor> direct_weight_gradients(const Tensor& dy_any, const Tensor& x, const Tensor& v,
                                                           const Tensor& g, const Tensor& norms,
                                                           const Geometry& geometry, std::array<bool, 4> mask) {
  const Shape s = shape_of(x, v, geometry);
  const Tensor dy = dy_any.contiguous();
  Tensor dv_out, dg_out, db_out;
  if (mask[1]) dv_out = at::empty_like(v);
  if (mask[2]) dg_out = at::empty(g.sizes(), g.options());
  if (mask[3]) db_out = at::empty({s.rows}, dy.options());
  const auto data = [](const Tensor& t) { return t.defined() ? t.mutable_data_ptr<float>() : nullptr; };
  float *dv = data(dv_out), *dg = data(dg_out), *db = data(db_out);
  const std::vector<float> scales = scales_of(g, norms);
  const float *vp = v.const_data_ptr<float>(), *n = norms.const_data_ptr<float>(), *dyp = dy.const_data_ptr<float>();
  const WeightGradient gradient{s, dyp, x.const_data_ptr<float>()};
  const int64_t row = s.taps() * s.channels, threads = at::get_num_threads();
  const int64_t parts = x.numel() > gradient.size() ? std::min(threads, s.batch) : 1;
  const int64_t splits = std::clamp<int64_t>(threads / parts, 1, (s.rows + kMostRows - 1) / kMostRows);
  const Memory sums = borrow(kSums, parts * gradient.size());

  const auto finish = [&](int64_t begin, int64_t end) {  // rows whose parts are complete
    const Memory memory = borrow(kRows, 3 * row);
    for (int64_t r = begin; r < end; ++r) {
      const float *dw = whole_row(gradient, sums.get(), parts, r, memory.get()), *v_row = vp + r * row;
      const float c = row_dot(dw, v_row, n[r], row);
      if (dg) dg[r] = c;
      if (dv) project_row(dv + r * row, dw, v_row, scales[r], over(c, n[r]), row);
      if (db) db[r] = static_cast<float>(bias_gradient(dyp, r, s));
    }
  };

  at::parallel_for(0, parts * splits, 1, [&](int64_t task, int64_t end) {
    for (; task < end; ++task) {
      const int64_t part = task / splits, split = task % splits;
      const int64_t first = s.rows * split / splits, last = s.rows * (split + 1) / splits;
      gradient.sum(sums.get() + part * gradient.size(), s.batch * part / parts, s.batch * (part + 1) / parts, first,
                   last);
      if (parts == 1) finish(first, last);
    }
  });
  if (parts > 1) at::parallel_for(0, s.rows, std::max<int64_t>(1, 16384 / row), finish);
  return {dv_out, dg_out, db_out};
}

}  // namespace wnfused
