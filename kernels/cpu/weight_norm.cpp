#include "weight_norm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <vector>

#include "kernels.h"
#include "row.h"
#include "weight_types.h"

namespace wnfused {
namespace {

constexpr int64_t kSegment = 4096;  // segment length of a single norm over the whole weight
constexpr int64_t kParts = 16;      // partial sums of a column-wise reduction; fixed, so that the thread count does not change results

int64_t grain(int64_t elements_each) { return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, elements_each)); }

// One sum per row: segment(o, sums) adds the contribution of outer index o to every row.
template <typename T, typename Segment>
std::vector<acc_t<T>> reduce_rows(const Layout& at, const Segment& segment) {
  const int64_t parts = std::min(kParts, at.outer);
  std::vector<acc_t<T>> partial(parts * at.rows, acc_t<T>(0));
  at::parallel_for(0, parts, grain(at.numel / std::max<int64_t>(1, parts)), [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      acc_t<T>* sums = partial.data() + part * at.rows;
      for (int64_t o = part * at.outer / parts; o < (part + 1) * at.outer / parts; ++o) segment(o, sums);
    }
  });
  for (int64_t part = 1; part < parts; ++part)
    for (int64_t r = 0; r < at.rows; ++r) partial[r] += partial[part * at.rows + r];
  partial.resize(at.rows);
  return partial;
}

// sums[r] += <a, b> of segment o, row by row.
template <typename A, typename B>
void add_dots(const Layout& at, int64_t o, const A* a, const B* b, acc_t<A>* sums) {
  const int64_t start = o * at.rows * at.inner;
  if (!at.by_columns()) {
    const int64_t n = at.segment(o);
    for (int64_t r = 0; r < at.rows; ++r) sums[r] += dot(a + start + r * at.inner, b + start + r * at.inner, n);
    return;
  }
  for_lanes<A>(at.rows, [&](int64_t r, auto count) {
    const Lane<A> left = load_lane(a + start + r, count), right = load_lane(b + start + r, count);
    store_lane(sums + r, at::vec::fmadd(left, right, load_lane(sums + r, count)), count);
  });
}

template <typename T>
void contiguous_row_norms(const Layout& at, const T* v, acc_t<T>* norms, double eps) {
  at::parallel_for(0, at.rows, grain(at.inner), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) norms[r] = row_norm(v + r * at.inner, at.inner, eps);
  });
}

template <typename T>
acc_t<T> careful_scattered_norm(const Layout& at, const T* v, int64_t row, double eps) {
  std::vector<T> values;
  for (int64_t o = 0; o < at.outer; ++o) {
    const T* start = v + (o * at.rows + row) * at.inner;
    values.insert(values.end(), start, start + at.segment(o));
  }
  return careful_norm(values.data(), static_cast<int64_t>(values.size()), 1, eps);
}

template <typename T>
void scattered_row_norms(const Layout& at, const T* v, acc_t<T>* norms, double eps) {
  const auto squares = reduce_rows<T>(at, [&](int64_t o, acc_t<T>* sums) { add_dots(at, o, v, v, sums); });
  for (int64_t r = 0; r < at.rows; ++r) {
    norms[r] = square_is_safe<T>(squares[r]) ? std::sqrt(squares[r] + static_cast<acc_t<T>>(eps))
                                             : careful_scattered_norm(at, v, r, eps);
  }
}

// For every segment: body(row, offset, length), in parallel.
template <typename Body>
void for_each_segment(const Layout& at, const Body& body) {
  at::parallel_for(0, at.outer * at.rows, grain(at.inner), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i % at.rows, i * at.inner, at.segment(i / at.rows));
  });
}

template <typename T>
std::vector<acc_t<T>> scales(const Tensor& g, const Tensor& norms) {
  const Tensor gc = g.contiguous();
  const acc_t<T>* n = norms.const_data_ptr<acc_t<T>>();
  std::vector<acc_t<T>> s(norms.numel());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, g.scalar_type(), "wnfused", [&] {
    const scalar_t* gains = gc.const_data_ptr<scalar_t>();
    for (size_t r = 0; r < s.size(); ++r) s[r] = over(static_cast<acc_t<T>>(gains[r]), n[r]);
  });
  return s;
}

template <typename T, typename O>
void write_normalized(const Layout& at, O* w, const T* v, const std::vector<acc_t<T>>& s) {
  if (!at.by_columns()) {
    for_each_segment(at, [&](int64_t r, int64_t offset, int64_t n) { scale_row(w + offset, v + offset, s[r], n); });
    return;
  }
  at::parallel_for(0, at.outer, grain(at.rows), [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      for_lanes<T>(at.rows, [&](int64_t r, auto count) {
        const int64_t i = o * at.rows + r;
        store_lane(w + i, load_lane(v + i, count) * load_lane(s.data() + r, count), count);
      });
    }
  });
}

// dv for contiguous rows, in one pass over dw and v: a row stays in cache between its dot and its update.
template <typename T, typename D, typename O>
void contiguous_backward(const Layout& at, O* dv, const D* dw, const T* v, const acc_t<T>* norms,
                         const std::vector<acc_t<T>>& s, acc_t<T>* c) {
  at::parallel_for(0, at.rows, grain(at.inner), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t i = r * at.inner;
      c[r] = row_dot(dw + i, v + i, norms[r], at.inner);
      if (dv) project_row(dv + i, dw + i, v + i, s[r], over(c[r], norms[r]), at.inner);
    }
  });
}

template <typename T, typename D>
acc_t<T> careful_scattered_dot(const Layout& at, const D* dw, const T* v, int64_t row, acc_t<T> norm) {
  double sum = 0;
  for (int64_t o = 0; o < at.outer; ++o) {
    const int64_t i = (o * at.rows + row) * at.inner;
    sum += row_dot(dw + i, v + i, norm, at.segment(o));
  }
  return static_cast<acc_t<T>>(sum);
}

template <typename T, typename D, typename O>
void scattered_backward(const Layout& at, O* dv, const D* dw, const T* v, const acc_t<T>* norms,
                        const std::vector<acc_t<T>>& s, acc_t<T>* c) {
  const auto dots = reduce_rows<T>(at, [&](int64_t o, acc_t<T>* sums) { add_dots(at, o, dw, v, sums); });
  std::vector<acc_t<T>> c_over_norm(at.rows);
  for (int64_t r = 0; r < at.rows; ++r) {
    c[r] = norm_is_moderate<T>(norms[r]) ? over(dots[r], norms[r]) : careful_scattered_dot(at, dw, v, r, norms[r]);
    c_over_norm[r] = over(c[r], norms[r]);
  }
  if (!dv) return;
  if (!at.by_columns()) {
    for_each_segment(at, [&](int64_t r, int64_t i, int64_t n) { project_row(dv + i, dw + i, v + i, s[r], c_over_norm[r], n); });
    return;
  }
  at::parallel_for(0, at.outer, grain(at.rows), [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      for_lanes<T>(at.rows, [&](int64_t r, auto count) {
        const int64_t i = o * at.rows + r;
        const auto rest = load_lane(dw + i, count) - load_lane(c_over_norm.data() + r, count) * load_lane(v + i, count);
        store_lane(dv + i, load_lane(s.data() + r, count) * rest, count);
      });
    }
  });
}

}  // namespace

bool same_order(const Tensor& a, const Tensor& b) {
  for (int64_t d = 0; d < a.dim(); ++d)
    if (a.size(d) > 1 && a.stride(d) != b.stride(d)) return false;
  return true;
}

Tensor in_strides_of(const Tensor& like, const Tensor& t) {
  if (same_order(t, like)) return t;
  const Tensor fresh = at::empty_like(like, t.options());
  return same_order(t, fresh) ? t : fresh.copy_(t);
}

Layout layout_of(const Tensor& v, Dim dim) {
  const int64_t numel = v.numel();
  if (!dim) {
    const int64_t inner = std::min(numel, kSegment);
    return {inner ? (numel + inner - 1) / inner : 0, 1, inner, numel};
  }
  int64_t outer = 1;
  for (int64_t d = 0; d < *dim; ++d) outer *= v.size(d);
  const int64_t rows = v.size(*dim), slices = outer * rows;
  return {outer, rows, slices ? numel / slices : 0, numel};
}

Tensor walkable(const Tensor& v, Dim dim) {
  if (v.is_contiguous()) return v;
  const bool dense = v.is_non_overlapping_and_dense();
  const bool rows_outermost = dim == Dim(0) && v.size(0) > 0 && v.stride(0) == v.numel() / v.size(0);
  return dense && (!dim || rows_outermost) ? v : v.contiguous();
}

bool all_moderate(const Tensor& norms) {
  bool all = true;
  AT_DISPATCH_FLOATING_TYPES(norms.scalar_type(), "wnfused", [&] {
    const scalar_t* n = norms.const_data_ptr<scalar_t>();
    // Zero rows need no special case: they are scaled by zero.
    for (int64_t r = 0; r < norms.numel(); ++r) all = all && (n[r] == 0 || norm_is_moderate<scalar_t>(n[r]));
  });
  return all;
}

Tensor row_norms(const Tensor& v_any, const Tensor& g, Dim dim, double eps) {
  const Tensor v = walkable(v_any, dim);
  const Layout at = layout_of(v, dim);
  Tensor norms;
  WNFUSED_DISPATCH(v.scalar_type(), [&] {
    norms = at::empty(g.sizes(), v.options().dtype(c10::CppTypeToScalarType<acc_t<scalar_t>>::value));
    const scalar_t* p = v.const_data_ptr<scalar_t>();
    auto* n = norms.mutable_data_ptr<acc_t<scalar_t>>();
    if (at.by_rows()) {
      contiguous_row_norms(at, p, n, eps);
    } else {
      scattered_row_norms(at, p, n, eps);
    }
  });
  return norms;
}

Tensor normalized(const Tensor& v_any, const Tensor& g, const Tensor& norms, Dim dim, at::ScalarType dtype) {
  if (!fits(dtype, v_any.scalar_type())) return normalized(v_any, g, norms, dim, v_any.scalar_type()).to(dtype);
  const Tensor v = walkable(v_any, dim);
  const Layout at = layout_of(v, dim);
  Tensor w = at::empty_like(v, v.options().dtype(dtype));
  WNFUSED_DISPATCH(v.scalar_type(), [&] {
    using T = scalar_t;
    const auto s = scales<T>(g, norms);
    with_type<T>(dtype, [&](auto kind) {
      using O = decltype(kind);
      write_normalized(at, w.mutable_data_ptr<O>(), v.const_data_ptr<T>(), s);
    });
  });
  return in_strides_of(v_any, w);
}

std::tuple<Tensor, Tensor> normalize(const Tensor& v_any, const Tensor& g, Dim dim, double eps, at::ScalarType dtype) {
  const Tensor v = walkable(v_any, dim);
  const Layout at = layout_of(v, dim);
  if (!at.by_rows() || !fits(dtype, v.scalar_type()) || g.scalar_type() != v.scalar_type()) {
    const Tensor norms = row_norms(v, g, dim, eps);
    return {normalized(v_any, g, norms, dim, dtype), norms};
  }
  const Tensor gc = g.contiguous();
  Tensor w = at::empty_like(v, v.options().dtype(dtype)), norms = at::empty(g.sizes(), v.options().dtype(at::toOpMathType(v.scalar_type())));
  WNFUSED_DISPATCH(v.scalar_type(), [&] {
    using T = scalar_t;
    const T *vp = v.const_data_ptr<T>(), *gp = gc.const_data_ptr<T>();
    auto* n = norms.mutable_data_ptr<acc_t<T>>();
    with_type<T>(dtype, [&](auto kind) {
      using O = decltype(kind);
      O* wp = w.mutable_data_ptr<O>();
      at::parallel_for(0, at.rows, grain(at.inner), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const int64_t i = r * at.inner;
          n[r] = row_norm(vp + i, at.inner, eps);
          scale_row(wp + i, vp + i, over(static_cast<acc_t<T>>(gp[r]), n[r]), at.inner);
        }
      });
    });
  });
  return {in_strides_of(v_any, w), norms};
}

std::tuple<Tensor, Tensor> consume_dw(
    Tensor dw, const Tensor& v_any, const Tensor& g, const Tensor& norms, Dim dim, bool want_dv, bool want_dg) {
  const Tensor v = walkable(v_any, dim);
  if (!fits(dw.scalar_type(), v.scalar_type())) dw = dw.to(v.scalar_type());
  if (!same_order(dw, v)) {
    Tensor like_v = at::empty_like(v, v.options().dtype(dw.scalar_type()));
    like_v.copy_(dw);
    dw = like_v;
  }
  const Layout at = layout_of(v, dim);
  Tensor dv, c;
  if (want_dv) dv = dw.scalar_type() == v.scalar_type() ? dw : at::empty_like(v);
  WNFUSED_DISPATCH(v.scalar_type(), [&] {
    using T = scalar_t;
    c = at::empty(g.sizes(), norms.options());
    const auto s = scales<T>(g, norms);
    with_type<T>(dw.scalar_type(), [&](auto kind) {
      using D = decltype(kind);
      T* out = want_dv ? dv.mutable_data_ptr<T>() : nullptr;
      const D* in = dw.const_data_ptr<D>();
      const auto* n = norms.const_data_ptr<acc_t<T>>();
      auto* dots = c.mutable_data_ptr<acc_t<T>>();
      if (at.by_rows()) {
        contiguous_backward(at, out, in, v.const_data_ptr<T>(), n, s, dots);
      } else {
        scattered_backward(at, out, in, v.const_data_ptr<T>(), n, s, dots);
      }
    });
  });
  if (want_dv) dv = in_strides_of(v_any, dv);
  return {dv, want_dg ? c.to(g.scalar_type()) : Tensor()};
}

std::tuple<Tensor, Tensor> weight_norm(const Tensor& v, const Tensor& g, Dim dim, double eps) {
  auto [w, norms] = normalize(v, g, dim, eps, v.scalar_type());
  return {w, norms};
}

std::tuple<Tensor, Tensor> weight_norm_backward(
    const Tensor& dw, const Tensor& v, const Tensor& g, const Tensor& norms, Dim dim, std::array<bool, 2> mask) {
  return consume_dw(dw.clone(), v, g, norms, dim, mask[0], mask[1]);
}

}  // namespace wnfused
