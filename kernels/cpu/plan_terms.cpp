#include "plan_terms.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "direct_shape.h"
#include "tile.h"

namespace wnfused {
namespace {

constexpr int64_t kSmallWeight = 65536, kManyRows = 128;  // as in direct.cpp and direct_weight.cpp

struct Cpu {
  double cache = 0;       // bytes of L2
  int64_t vector = kVec;  // floats in a vector of oneDNN's kernels, which may be wider than ours
  double caution = 1;     // the factor on the direct kernels' cycles

  Cpu() {
#ifdef _SC_LEVEL2_CACHE_SIZE
    cache = static_cast<double>(sysconf(_SC_LEVEL2_CACHE_SIZE));
#endif
    if (cache <= 0) cache = 1 << 20;
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f")) vector = 16;
    // The constants are from an AMD server. On two Intel servers the direct kernels reached four fifths of that speed,
    // relative to oneDNN.
    if (!__builtin_cpu_is("amd")) caution = 1.25;
#endif
  }
};

const Cpu& cpu() {
  static const Cpu one;
  return one;
}

double real(int64_t n) { return static_cast<double>(n); }
double numel(at::IntArrayRef sizes) { return real(c10::multiply_integers(sizes)); }
double round_up(int64_t n, int64_t unit) { return real((n + unit - 1) / unit * unit); }

// Elements of a block of memory that malloc maps anew at every call, which costs a page fault for every page.
double mapped(double elements) { return 4 * elements >= (32 << 20) ? elements : 0; }

// Elements of a weight that do not fit into L2.
double beyond_cache(double weights) { return std::max(0.0, weights - cpu().cache / 4); }

// Channels as oneDNN's kernels count them: in whole vectors, unless there are very few.
double lanes(int64_t channels) { return channels <= 4 ? real(channels) : round_up(channels, cpu().vector); }

// The longest share of `tasks` equal tasks that a thread gets.
double share(int64_t tasks, int64_t threads) {
  return real((tasks + threads - 1) / threads) / real(std::max<int64_t>(1, tasks));
}

// Cycles of the register tiles (tile.h) that cover rows × columns, per step of their sums: bound by two multiply-adds or two
// loads a cycle, and by the latency of four cycles.
double tile_cycles(int64_t rows, int64_t columns) {
  const int vectors = block_vectors(columns);
  const auto of_blocks = [&](int v) {
    const int64_t blocks = (rows + most_rows(v) - 1) / most_rows(v), r = (rows + blocks - 1) / blocks;
    return real(blocks * std::max<int64_t>({r * v, r + v, 8})) / 2;
  };
  const int64_t all = vectors_of(columns), rest = all % vectors;
  return real(all / vectors) * of_blocks(vectors) + (rest ? of_blocks(static_cast<int>(rest)) : 0);
}

// Per thread, in thousands.
Terms per_thread(Terms terms, double threads) {
  for (double& term : terms) term /= threads * 1e3;
  return terms;
}

Terms vendor_terms(Product product, Route route, const Problem& p, int64_t threads) {
  const double images = numel(p.x), outputs = numel(p.y), weights = numel(p.v);
  const int64_t groups = p.geometry.groups, in = p.x[1] / groups, out = p.y[1] / groups;
  // A transposed convolution has its sums at the pixels of its input.
  const double pixels = p.geometry.transposed ? images / real(p.x[1]) : outputs / real(p.y[1]);  // of all images
  const double taps = numel(at::IntArrayRef(p.v).slice(2));
  const double channels = in == 1 && groups > 1 ? 1.0 : lanes(in);  // depthwise kernels do not pad
  const double cycles = pixels * real(groups) * channels * lanes(out) * taps / real(2 * cpu().vector);
  double scaled = weights;
  if (route == Route::kScaledOutput) scaled = outputs;
  if (route == Route::kScaledInput) scaled = images;
  if (product == Product::kWeightGradient) scaled = 0;
  const bool strided = numel(p.geometry.stride) > 1;
  Terms terms = per_thread({0, cycles, images + outputs, weights, scaled, strided ? cycles : 0, beyond_cache(weights), 0, 0},
                           real(threads));
  terms[0] = 1;
  terms[7] = (mapped(images) + mapped(outputs) + mapped(weights)) / 1e3;  // the system maps with one thread
  terms[8] = strided ? 1 : 0;
  return terms;
}

Terms patches_terms(const Problem& p, int64_t threads) {
  const Shape s = shape_of(p.x, p.v, p.geometry);
  const double patches = real(s.out_pixels() * s.channels * s.taps()), weights = numel(p.v);
  const double cycles = patches * real(s.rows) / real(2 * cpu().vector);
  Terms terms = per_thread({0, cycles, patches, weights, numel(p.y), 0, beyond_cache(weights), 0, 0}, real(threads));
  terms[0] = 1;
  terms[7] = mapped(weights) / 1e3;
  return terms;
}

// y, or dx as the convolution of s.transposed().
Terms direct_image_terms(const Shape& s, int64_t threads, bool by_channel) {
  const int64_t splits = std::clamp<int64_t>(threads / s.batch, 1, (s.rows + kMostRows - 1) / kMostRows);
  const double images = share(s.batch * splits, threads) * real(s.batch);  // of the busiest thread
  const bool padded = s.out_w % kVec == 0 || s.out_h == 1;
  const double copies =
      real(s.channels * (s.out_h + s.reach_h()) * (padded ? s.out_w + s.reach_w() : s.out_w * s.kernel_w));
  const double cycles = cpu().caution * tile_cycles(s.rows, s.out_pixels()) * real(s.channels * s.taps());
  const double weights = real(s.rows * s.channels * s.taps());
  const double reads = weights * std::ceil(real(s.out_pixels()) / real(block_vectors(s.out_pixels()) * kVec));
  const double beyond = reads / weights * std::max(0.0, weights - cpu().cache / 8);
  const double chains = std::ceil(real(s.channels) / real(std::max<int64_t>(1, kChain / s.taps())));
  const double sums = real(s.rows) * round_up(s.out_pixels(), kVec) * chains;
  const double scattered = by_channel ? reads : (s.stretched() ? copies : 0);
  Terms terms = per_thread({0, cycles, copies * real(splits), reads, beyond, scattered, 0, sums, 0}, 1 / images);
  terms[0] = 1;
  terms[6] = mapped(real(s.batch * s.rows * s.out_pixels())) / 1e3;
  return terms;
}

Terms direct_weight_terms(const Shape& s, int64_t threads) {
  const bool joined = s.dilation_w == 1;
  const int64_t run = joined ? s.kernel_w * s.channels : s.channels, runs = joined ? s.kernel_h : s.taps();
  const double weights = real(s.rows * s.channels * s.taps()), pixels = real(s.batch * s.out_pixels());
  const double cycles = cpu().caution * real(runs) * tile_cycles(s.rows, run) * pixels;
  const double copies = real(s.batch * s.channels * ((s.out_h - 1) * s.stride_h + s.reach_h() + 1) *
                             ((s.out_w - 1) * s.stride_w + s.reach_w() + 1));
  const bool gathered = s.rows >= kManyRows && s.channels > kMostVectors * kVec;
  const double blocks = real(runs) * std::ceil(real(run) / real(block_vectors(run) * kVec));
  const double lines = real(std::clamp<int64_t>(kChain / s.out_w, 1, s.out_h));
  const double together = std::max(1.0, std::floor(real(kChain) / real(s.out_pixels())));
  const double chains = std::ceil(real(s.batch) / together) * std::ceil(real(s.out_h) / lines) *
                        std::ceil(real(s.out_w) / real(kChain));
  Terms terms = per_thread({0, cycles, copies, weights, gathered ? pixels * real(s.channels * s.taps()) : 0,
                            pixels * real(s.rows) * blocks, 0, weights * chains, 0},
                           real(threads));
  terms[0] = 1;
  terms[6] = mapped(weights) / 1e3;
  return terms;
}

}  // namespace

Terms terms_of(Product product, Route route, const Problem& p, int64_t threads) {
  if (route == Route::kPatches) return patches_terms(p, threads);
  if (route != Route::kDirect) return vendor_terms(product, route, p, threads);
  const Shape s = shape_of(p.x, p.v, p.geometry);
  if (product == Product::kWeightGradient) return direct_weight_terms(s, threads);
  return product == Product::kOutput ? direct_image_terms(s, threads, false)
                                     : direct_image_terms(s.transposed(), threads, numel(p.v) > kSmallWeight);
}

}  // namespace wnfused
