#include "channels_last.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <array>
#include <functional>
#include <vector>

#include "row.h"

namespace wnfused {
namespace {

constexpr int64_t kStrip = 16;      // rows turned at a time: one cache line of the result
constexpr int64_t kGrain = 16384;   // elements a thread should have before a second one is worth waking

int64_t grain(int64_t elements_each) { return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, elements_each)); }

void turn(float* to, const float* from, int64_t rows, int64_t columns, int64_t to_stride) {
  at::vec::transpose_mxn<float>(from, columns, to, to_stride, static_cast<int>(rows), static_cast<int>(columns));
}

// One kind of work: items that cost alike, each done by run(item).
struct Job {
  int64_t items, elements_each;
  std::function<void(int64_t)> run;
};

// All jobs in one parallel region, cut by elements: every further region costs the threads a wait for each other.
void run_together(const std::vector<Job>& jobs) {
  int64_t total = 0;
  for (const Job& job : jobs) total += job.items * job.elements_each;
  at::parallel_for(0, total, kGrain, [&](int64_t begin, int64_t end) {
    int64_t start = 0;
    for (const Job& job : jobs) {
      // the items that start within [begin, end)
      const auto first_from = [&](int64_t place) {
        return std::clamp<int64_t>((place - start + job.elements_each - 1) / job.elements_each, 0, job.items);
      };
      for (int64_t i = first_from(begin); i < first_from(end); ++i) job.run(i);
      start += job.items * job.elements_each;
    }
  });
}

// Each of count matrices [rows, columns] becomes [columns, rows], a strip of rows at a time.
Job turn_job(float* to, const float* from, int64_t count, int64_t rows, int64_t columns) {
  const int64_t strips = (rows + kStrip - 1) / kStrip;
  return {count * strips, kStrip * columns, [=](int64_t i) {
            const int64_t matrix = i / strips * rows * columns, row = i % strips * kStrip;
            turn(to + matrix + row, from + matrix + row * columns, std::min(kStrip, rows - row), columns, rows);
          }};
}

int64_t pixels(const Tensor& t) { return t.size(2) * t.size(3); }

// What is turned is read once, by the convolution that follows: each kind of tensor has its place, which stays in cache
// from layer to layer, while fresh memory would have to be mapped and fetched for every call. Larger ones come and go.
enum Place { kImages, kWeight, kGradient };
constexpr int64_t kKeptElements = 1 << 20;  // 4 MB each, a thread

Tensor empty_channels_last(const Tensor& like, Place place) {
  constexpr auto format = at::MemoryFormat::ChannelsLast;
  if (like.numel() > kKeptElements) return at::empty(like.sizes(), like.options().memory_format(format));
  thread_local std::array<Tensor, 3> kept;
  Tensor& memory = kept[place];
  if (!memory.defined() || memory.numel() < like.numel()) memory = at::empty({like.numel()}, like.options());
  return memory.as_strided(like.sizes(), c10::get_channels_last_strides_2d(like.sizes()));
}

Job to_channels_last(Tensor& to, const Tensor& t, Place place) {
  to = empty_channels_last(t, place);
  return turn_job(to.mutable_data_ptr<float>(), t.const_data_ptr<float>(), t.size(0), t.size(1), pixels(t));
}

// Each output channel of v, [inputs, taps], scaled into w's [taps, inputs]; norm(r, row, size) gives its norm.
template <typename Norm>
Job write_weight(Tensor& w, const Tensor& v, const Tensor& gains, const Norm& norm) {
  w = empty_channels_last(v, kWeight);
  const int64_t inputs = v.size(1), taps = pixels(v), row = inputs * taps;
  const float *vp = v.const_data_ptr<float>(), *g = gains.const_data_ptr<float>();
  float* wp = w.mutable_data_ptr<float>();
  return {v.size(0), row, [=](int64_t r) {
            turn(wp + r * row, vp + r * row, inputs, taps, inputs);
            scale_row(wp + r * row, wp + r * row, over(g[r], norm(r, vp + r * row, row)), row);
          }};
}

}  // namespace

ChannelsLast channels_last_forward(const Tensor& x, const Tensor& v, const Tensor& g, double eps) {
  ChannelsLast out{.norms = at::empty(g.sizes(), v.options())};
  const Tensor gains = g.contiguous();
  float* n = out.norms.mutable_data_ptr<float>();
  const auto norm = [=](int64_t r, const float* row, int64_t size) { return n[r] = row_norm(row, size, eps); };
  run_together({write_weight(out.w, v, gains, norm), to_channels_last(out.x, x, kImages)});
  return out;
}

ChannelsLast channels_last_backward(const Tensor& dy, const Tensor& x, const Tensor& v, const Tensor& g,
                                    const Tensor& norms, bool need_x, bool need_w) {
  // Torch's backward reads no more than the shape and order of a tensor whose product is not asked for.
  ChannelsLast out{.x = need_x ? Tensor() : empty_channels_last(x, kImages),
                   .w = need_w ? Tensor() : empty_channels_last(v, kWeight)};
  const Tensor gains = g.contiguous();
  const float* n = norms.const_data_ptr<float>();
  std::vector<Job> jobs;
  if (need_w) jobs.push_back(write_weight(out.w, v, gains, [=](int64_t r, const float*, int64_t) { return n[r]; }));
  if (need_x) jobs.push_back(to_channels_last(out.x, x, kImages));
  if (dy.is_contiguous(at::MemoryFormat::ChannelsLast)) {
    out.dy = dy;
  } else {
    jobs.push_back(to_channels_last(out.dy, dy, kGradient));
  }
  run_together(jobs);
  return out;
}

Tensor to_contiguous(Tensor t, bool relu) {
  Tensor out = at::empty(t.sizes(), t.options());
  const int64_t rows = pixels(t), columns = t.size(1), size = rows * columns;
  float* from = t.mutable_data_ptr<float>();
  Job job = turn_job(out.mutable_data_ptr<float>(), from, t.size(0), rows, columns);
  if (relu) {
    const int64_t strips = job.items / t.size(0);
    job.run = [=, turn_strip = job.run](int64_t i) {
      const int64_t row = i % strips * kStrip, height = std::min(kStrip, rows - row);
      float* strip = from + i / strips * size + row * columns;
      for_lanes<float>(height * columns, [&](int64_t j, auto count) {
        store_lane(strip + j, at::vec::maximum(load_lane(strip + j, count), Lane<float>(0)), count);
      });
      turn_strip(i);
    };
  }
  run_together({job});
  return out;
}

std::tuple<Tensor, Tensor> project_channels_last(
    const Tensor& dw, const Tensor& v, const Tensor& g, const Tensor& norms, bool want_dv, bool want_dg) {
  const Tensor gains = g.contiguous();
  Tensor dv = want_dv ? at::empty_like(v) : Tensor(), dg = want_dg ? at::empty(g.sizes(), g.options()) : Tensor();
  const int64_t inputs = v.size(1), taps = pixels(dw), row = inputs * taps;
  const float *dwp = dw.const_data_ptr<float>(), *vp = v.const_data_ptr<float>(), *gp = gains.const_data_ptr<float>();
  const float* n = norms.const_data_ptr<float>();
  float *dvp = want_dv ? dv.mutable_data_ptr<float>() : nullptr, *dgp = want_dg ? dg.mutable_data_ptr<float>() : nullptr;
  at::parallel_for(0, v.size(0), grain(row), [&](int64_t begin, int64_t end) {
    std::vector<float> turned(row);
    for (int64_t r = begin; r < end; ++r) {
      const float* v_row = vp + r * row;
      turn(turned.data(), dwp + r * row, taps, inputs, taps);
      const float c = row_dot(turned.data(), v_row, n[r], row);
      if (dgp) dgp[r] = c;
      if (dvp) project_row(dvp + r * row, turned.data(), v_row, over(gp[r], n[r]), over(c, n[r]), row);
    }
  });
  return {dv, dg};
}

}  // namespace wnfused
