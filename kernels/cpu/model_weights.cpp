// weight_norm of all weights of a model. Weights whose rows are contiguous share one parallel loop, because a loop for each
// of a hundred small weights would cost more than the rows themselves. Other weights take weight_norm's own functions.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "kernels.h"
#include "row.h"
#include "weight_norm.h"
#include "weight_types.h"

namespace wnfused {
namespace {

Dim dim_of(int64_t dim) { return dim == -1 ? Dim() : Dim(dim); }

// Some rows of one weight, about kGrain elements.
struct Piece {
  size_t weight;
  int64_t begin, end;
};

void add_pieces(std::vector<Piece>& pieces, size_t weight, const Layout& at) {
  const int64_t rows = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, at.inner));
  for (int64_t r = 0; r < at.rows; r += rows) pieces.push_back({weight, r, std::min(r + rows, at.rows)});
}

// body(weight, row, offset of the row) for all rows of all pieces, in parallel.
template <typename Body>
void for_each_row(const std::vector<Piece>& pieces, const std::vector<Layout>& layouts, const Body& body) {
  int64_t elements = 1;
  for (const Piece& piece : pieces) elements += (piece.end - piece.begin) * layouts[piece.weight].inner;
  const int64_t count = static_cast<int64_t>(pieces.size()), grain = std::max<int64_t>(1, count * kGrain / elements);
  at::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Piece& piece = pieces[i];
      for (int64_t r = piece.begin; r < piece.end; ++r) body(piece.weight, r, r * layouts[piece.weight].inner);
    }
  });
}

// The weights in memory order, their layouts, their gains, and where their norms start.
struct Weights {
  std::vector<Tensor> v, g;
  std::vector<Layout> layouts;
  std::vector<int64_t> starts;
  int64_t rows = 0;

  Weights(at::TensorList given, at::TensorList gains, at::IntArrayRef dims) {
    for (size_t i = 0; i < given.size(); ++i) {
      const Dim dim = dim_of(dims[i]);
      v.push_back(walkable(given[i], dim));
      g.push_back(gains[i].contiguous());
      layouts.push_back(layout_of(v[i], dim));
      starts.push_back(rows);
      rows += gains[i].numel();
    }
  }

  bool shares(size_t i, at::ScalarType other) const {
    return layouts[i].by_rows() && fits(other, v[i].scalar_type()) && g[i].scalar_type() == v[i].scalar_type();
  }
  Tensor norms_of(const Tensor& norms, size_t i) const { return norms.narrow(0, starts[i], g[i].numel()); }
};

}  // namespace

std::tuple<std::vector<Tensor>, Tensor> model_weights(
    at::TensorList v, at::TensorList g, at::IntArrayRef dims, at::ArrayRef<double> eps, at::ScalarType dtype) {
  const Weights weights(v, g, dims);
  Tensor norms = at::empty({weights.rows}, v[0].options().dtype(at::toOpMathType(v[0].scalar_type())));
  std::vector<Tensor> w(v.size());
  std::vector<Piece> pieces;
  for (size_t i = 0; i < v.size(); ++i) {
    if (weights.shares(i, dtype)) {
      w[i] = at::empty_like(weights.v[i], v[i].options().dtype(dtype));
      add_pieces(pieces, i, weights.layouts[i]);
    } else {
      auto [own, n] = normalize(v[i], g[i], dim_of(dims[i]), eps[i], dtype);
      w[i] = own;
      weights.norms_of(norms, i).copy_(n.reshape({-1}));
    }
  }
  WNFUSED_DISPATCH(v[0].scalar_type(), [&] {
    using T = scalar_t;
    auto* n = norms.mutable_data_ptr<acc_t<T>>();
    with_type<T>(dtype, [&](auto kind) {
      using O = decltype(kind);
      for_each_row(pieces, weights.layouts, [&](size_t i, int64_t r, int64_t offset) {
        const int64_t length = weights.layouts[i].inner;
        const T* row = weights.v[i].const_data_ptr<T>() + offset;
        acc_t<T>& norm = n[weights.starts[i] + r];
        norm = row_norm(row, length, eps[i]);
        const acc_t<T> gain = weights.g[i].const_data_ptr<T>()[r];
        scale_row(static_cast<O*>(w[i].data_ptr()) + offset, row, over(gain, norm), length);
      });
    });
  });
  for (size_t i = 0; i < v.size(); ++i) w[i] = in_strides_of(v[i], w[i]);
  return {std::move(w), norms};
}

std::tuple<std::vector<Tensor>, std::vector<Tensor>> model_weights_backward(
    at::TensorList dw, at::TensorList v, at::TensorList g, const Tensor& norms, at::IntArrayRef dims,
    const c10::List<bool>& want_v, const c10::List<bool>& want_g) {
  const Weights weights(v, g, dims);
  const at::ScalarType dtype = dw[0].scalar_type();
  std::vector<Tensor> dv(v.size()), dg(v.size());
  std::vector<Piece> pieces;
  for (size_t i = 0; i < v.size(); ++i) {
    if (weights.shares(i, dtype) && same_order(dw[i], weights.v[i])) {
      if (want_v[i]) dv[i] = at::empty_like(weights.v[i]);
      if (want_g[i]) dg[i] = at::empty_like(g[i], g[i].options(), at::MemoryFormat::Contiguous);
      if (want_v[i] || want_g[i]) add_pieces(pieces, i, weights.layouts[i]);
    } else {
      const Tensor n = weights.norms_of(norms, i).view(g[i].sizes());
      std::tie(dv[i], dg[i]) = consume_dw(dw[i].clone(), v[i], g[i], n, dim_of(dims[i]), want_v[i], want_g[i]);
    }
  }
  WNFUSED_DISPATCH(v[0].scalar_type(), [&] {
    using T = scalar_t;
    const auto* n = norms.const_data_ptr<acc_t<T>>();
    with_type<T>(dtype, [&](auto kind) {
      using D = decltype(kind);
      for_each_row(pieces, weights.layouts, [&](size_t i, int64_t r, int64_t offset) {
        const int64_t length = weights.layouts[i].inner;
        const T* row = weights.v[i].const_data_ptr<T>() + offset;
        const D* gradient = static_cast<const D*>(dw[i].const_data_ptr()) + offset;
        const acc_t<T> norm = n[weights.starts[i] + r], c = row_dot(gradient, row, norm, length);
        if (dg[i].defined()) static_cast<T*>(dg[i].data_ptr())[r] = static_cast<T>(c);
        if (!dv[i].defined()) return;
        const acc_t<T> gain = weights.g[i].const_data_ptr<T>()[r];
        project_row(static_cast<T*>(dv[i].data_ptr()) + offset, gradient, row, over(gain, norm), over(c, norm), length);
      });
    });
  });
  std::vector<Tensor> dvs, dgs;
  for (size_t i = 0; i < v.size(); ++i) {
    if (want_v[i]) dvs.push_back(in_strides_of(v[i], dv[i]));
    if (want_g[i]) dgs.push_back(dg[i]);
  }
  return {std::move(dvs), std::move(dgs)};
}

}  // namespace wnfused
