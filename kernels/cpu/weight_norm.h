// Row norms, the normalized weight and its backward, for a norm along any dimension.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <optional>
#include <tuple>

namespace wnfused {

using at::Tensor;
using Dim = std::optional<int64_t>;

// v viewed as [outer, rows, inner], with one norm per row over outer and inner. For a single norm over the whole weight, rows
// is 1 and the elements are split into segments so that threads can share them.
struct Layout {
  int64_t outer, rows, inner, numel;
  // Each row is one contiguous run of elements.
  bool by_rows() const { return outer == 1 && rows > 1; }
  // Rows are columns of a matrix in memory: loops run across them, not along them.
  bool by_columns() const { return inner == 1 && rows > 1; }
  // Elements of one (outer, row) segment; only the last segment of a single norm can be shorter.
  int64_t segment(int64_t o) const { return std::min(inner, numel - o * rows * inner); }
};

Layout layout_of(const Tensor& v, Dim dim);

// v itself if its rows can be read in memory order (contiguous, or dense rows along dim 0), else a contiguous copy.
Tensor walkable(const Tensor& v, Dim dim);

bool same_order(const Tensor& a, const Tensor& b);

// t in the memory layout of at::empty_like(like), so that weights and gradients have the strides of their parameter.
Tensor in_strides_of(const Tensor& like, const Tensor& t);

// True if every norm is moderate enough to sum x * v and dy * v before scaling.
bool all_moderate(const Tensor& norms);

Tensor row_norms(const Tensor& v, const Tensor& g, Dim dim, double eps);

// w = g v / n in the given dtype.
Tensor normalized(const Tensor& v, const Tensor& g, const Tensor& norms, Dim dim, at::ScalarType dtype);

// (w, norms): both of the above, in one pass over v if its rows are contiguous.
std::tuple<Tensor, Tensor> normalize(const Tensor& v, const Tensor& g, Dim dim, double eps, at::ScalarType dtype);

// dw is consumed: if its dtype and strides allow, dv reuses its memory. Results that were not requested are undefined.
std::tuple<Tensor, Tensor> consume_dw(
    Tensor dw, const Tensor& v, const Tensor& g, const Tensor& norms, Dim dim, bool want_dv, bool want_dg);

}  // namespace wnfused
