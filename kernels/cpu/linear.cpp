#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/zeros.h>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "few_rows.h"
#include "gemm.h"
#include "kernels.h"
#include "row.h"
#include "weight_norm.h"

namespace wnfused {
namespace {

constexpr int64_t kFewRows = 8;    // batches up to this size walk v once (few_rows.h)
constexpr int64_t kFlatRows = 48;  // below this the BLAS is up to three times faster with the output transposed

int64_t grain(int64_t each) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, each)); }
// Memory for dv. A large one is fresh from the system every time, and its page faults cost as much as the matmul that
// fills it: huge pages, where the system gives them on request, take those away.
Tensor empty_gradient(const Tensor& v) {
  Tensor dv = at::empty_like(v);
#ifdef __linux__
  constexpr uintptr_t kHugePage = 2 << 20, kAlwaysMapped = 32 << 20;  // malloc maps blocks of this size one by one
  const auto start = reinterpret_cast<uintptr_t>(dv.mutable_data_ptr());
  if (dv.nbytes() >= kAlwaysMapped) {
    const uintptr_t first = (start + kHugePage - 1) & ~(kHugePage - 1), last = (start + dv.nbytes()) & ~(kHugePage - 1);
    madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  }
#endif
  return dv;
}

Tensor as_matrix(const Tensor& t, int64_t columns) {
  const int64_t rows = columns ? t.numel() / columns : 0;
  return t.reshape({rows, columns}).contiguous();
}

bool same_dtype(const Tensor& x, const Tensor& v, const Tensor& g) {
  return x.scalar_type() == v.scalar_type() && g.scalar_type() == v.scalar_type();
}

// y = y * s + b, then ReLU, for one row of y.
template <typename T>
void epilogue(T* y, int64_t n, const T* s, const T* bias, bool relu) {
  const Lane<T> zero(0);
  for_lanes<T>(n, [&](int64_t j, auto count) {
    Lane<T> z = load_lane(y + j, count) * load_lane(s + j, count);
    if (bias) z = z + load_lane(bias + j, count);
    if (relu) z = at::vec::maximum(z, zero);
    store_lane(y + j, z, count);
  });
}

// The same from a transposed matmul: y[i] = z[:, i] * s + b.
template <typename T>
void transposing_epilogue(T* y, const T* z, int64_t m, int64_t i, int64_t n, const T* s, const T* bias, bool relu) {
  for (int64_t j = 0; j < n; ++j) y[j] = z[j * m + i];
  epilogue(y, n, s, bias, relu);
}

template <typename T>
void many_rows_forward(const Tensor& x, const Tensor& v, const Tensor& g, const Tensor& bias, Tensor& y, Tensor& norms,
                       double eps, bool relu) {
  const int64_t m = x.size(0), n = v.size(0), k = v.size(1);
  const T *xp = x.const_data_ptr<T>(), *vp = v.const_data_ptr<T>(), *gp = g.const_data_ptr<T>();
  const T* bp = bias.defined() ? bias.const_data_ptr<T>() : nullptr;
  T *yp = y.mutable_data_ptr<T>(), *np = norms.mutable_data_ptr<T>();
  std::vector<T> s(n);
  at::parallel_for(0, n, grain(k), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      np[r] = row_norm(vp + r * k, k, eps);
      s[r] = over(gp[r], np[r]);
    }
  });
  if (m > kFlatRows) {
    gemm<T>('T', 'N', n, m, k, vp, k, xp, k, T(0), yp, n);
    at::parallel_for(0, m, grain(n), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) epilogue(yp + i * n, n, s.data(), bp, relu);
    });
  } else {
    const Tensor flat = at::empty({n, m}, y.options());
    T* zp = flat.mutable_data_ptr<T>();
    gemm<T>('T', 'N', m, n, k, xp, k, vp, k, T(0), zp, m);
    at::parallel_for(0, m, grain(4 * n), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) transposing_epilogue(yp + i * n, zp, m, i, n, s.data(), bp, relu);
    });
  }
}

// dw, and then dv in its place: a row stays in cache between its dot with v and its projection.
template <typename T>
void weight_gradient(const Tensor& dy, const Tensor& x, const Tensor& v, const Tensor& g, const Tensor& norms, Tensor& dv,
                     Tensor& c) {
  const int64_t m = x.size(0), n = v.size(0), k = v.size(1);
  const T *vp = v.const_data_ptr<T>(), *gp = g.const_data_ptr<T>(), *np = norms.const_data_ptr<T>();
  T *dvp = dv.mutable_data_ptr<T>(), *cp = c.mutable_data_ptr<T>();
  gemm<T>('N', 'T', k, n, m, x.const_data_ptr<T>(), k, dy.const_data_ptr<T>(), n, T(0), dvp, k);
  at::parallel_for(0, n, grain(k), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T inv = inverse(np[r]);
      cp[r] = row_dot(dvp + r * k, vp + r * k, np[r], k);
      project_row(dvp + r * k, dvp + r * k, vp + r * k, gp[r] * inv, cp[r] * inv, k);
    }
  });
}

template <typename T>
void scale_columns(T* to, const T* from, const T* s, int64_t n) {
  for_lanes<T>(n, [&](int64_t j, auto count) {
    store_lane(to + j, load_lane(from + j, count) * load_lane(s + j, count), count);
  });
}

// dx = (dy * s) v
template <typename T>
Tensor input_gradient(const Tensor& dy, const Tensor& v, const Tensor& g, const Tensor& norms) {
  const int64_t m = dy.size(0), n = v.size(0), k = v.size(1);
  const T *gp = g.const_data_ptr<T>(), *np = norms.const_data_ptr<T>(), *dyp = dy.const_data_ptr<T>();
  std::vector<T> s(n);
  for (int64_t r = 0; r < n; ++r) s[r] = over(gp[r], np[r]);
  Tensor scaled = at::empty_like(dy), dx = at::empty({m, k}, dy.options());
  T* sp = scaled.mutable_data_ptr<T>();
  at::parallel_for(0, m, grain(n), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) scale_columns(sp + i * n, dyp + i * n, s.data(), n);
  });
  gemm<T>('N', 'N', k, m, n, v.const_data_ptr<T>(), k, sp, n, T(0), dx.mutable_data_ptr<T>(), k);
  return dx;
}

Tensor bias_gradient(const Tensor& dy) {
  return dy.sum(at::IntArrayRef{0}, false, at::toOpMathType(dy.scalar_type()));
}

Gradients whole_weight_backward(const Tensor& dy, const Tensor& x, const Tensor& v, const Tensor& g, const Tensor& norms,
                                Dim dim, std::array<bool, 4> mask) {
  Tensor dx, dv, dg;
  if (mask[0]) dx = dy.mm(normalized(v, g, norms, dim, dy.scalar_type()));
  if (mask[1] || mask[2]) std::tie(dv, dg) = consume_dw(dy.t().mm(x), v, g, norms, dim, mask[1], mask[2]);
  return {dx, dv, dg, Tensor()};
}

template <typename T>
Gradients few_rows_backward(const Tensor& dy, const Tensor& x, const Tensor& v, const Tensor& g, const Tensor& norms,
                            std::array<bool, 4> mask) {
  Tensor dx, dv, c = at::empty(g.sizes(), norms.options());
  if (mask[0]) dx = at::empty_like(x);
  if (mask[1]) dv = empty_gradient(v);
  const Tensor gc = g.contiguous();
  FewRowsBackward<T>{dy.const_data_ptr<T>(), x.const_data_ptr<T>(), v.const_data_ptr<T>(), gc.const_data_ptr<T>(),
                     norms.const_data_ptr<acc_t<T>>(), mask[0] ? dx.mutable_data_ptr<T>() : nullptr,
                     mask[1] ? dv.mutable_data_ptr<T>() : nullptr, c.mutable_data_ptr<acc_t<T>>(), x.size(0), v.size(0),
                     v.size(1), mask[2]}
      .run();
  return {dx, dv, mask[2] ? c.to(g.scalar_type()) : Tensor(), Tensor()};
}

template <typename T>
Gradients many_rows_backward(const Tensor& dy, const Tensor& x, const Tensor& v, const Tensor& g, const Tensor& norms,
                             std::array<bool, 4> mask) {
  const Tensor gc = g.contiguous();
  Tensor dx, dv, dg;
  if (mask[0]) dx = input_gradient<T>(dy, v, gc, norms);
  if (mask[1] || mask[2]) {
    dv = empty_gradient(v), dg = at::empty_like(gc);
    weight_gradient<T>(dy, x, v, gc, norms, dv, dg);
  }
  return {dx, mask[1] ? dv : Tensor(), mask[2] ? dg : Tensor(), Tensor()};
}

}  // namespace

std::tuple<Tensor, Tensor> linear(const Tensor& x_any, const Tensor& v, const Tensor& g_any, const MaybeTensor& bias_any,
                                  Dim dim, double eps, bool relu) {
  const bool rows_in_order = dim == Dim(0) && v.is_contiguous() && same_dtype(x_any, v, g_any) && v.numel() > 0;
  const bool few = rows_in_order && x_any.numel() <= kFewRows * v.size(1);
  const bool many = rows_in_order && has_gemm(v.scalar_type(), std::max(x_any.numel(), v.numel()));
  const Tensor bias =
      bias_any.has_value() && bias_any->defined() ? bias_any->to(x_any.scalar_type()).contiguous() : Tensor();
  auto shape = x_any.sizes().vec();
  shape.back() = v.size(0);
  if (few || many) {
    const Tensor x = as_matrix(x_any, v.size(1)), g = g_any.contiguous();
    Tensor y = at::empty({x.size(0), v.size(0)}, x.options());
    Tensor norms = at::empty(g.sizes(), v.options().dtype(at::toOpMathType(v.scalar_type())));
    if (few) {
      AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, v.scalar_type(), "wn_linear", [&] {
        FewRowsForward<scalar_t>{x.const_data_ptr<scalar_t>(), v.const_data_ptr<scalar_t>(), g.const_data_ptr<scalar_t>(),
                                 bias.defined() ? bias.const_data_ptr<scalar_t>() : nullptr,
                                 y.mutable_data_ptr<scalar_t>(), norms.mutable_data_ptr<acc_t<scalar_t>>(), x.size(0),
                                 v.size(0), v.size(1), eps, relu}
            .run();
      });
      return {y.view(shape), norms};
    }
    AT_DISPATCH_FLOATING_TYPES(v.scalar_type(), "wn_linear",
                               [&] { many_rows_forward<scalar_t>(x, v, g, bias, y, norms, eps, relu); });
    if (all_moderate(norms)) return {y.view(shape), norms};
  }
  Tensor norms = row_norms(v, g_any, dim, eps);
  Tensor y = at::linear(x_any, normalized(v, g_any, norms, dim, x_any.scalar_type()), bias);
  return {relu ? y.relu_() : y, norms};
}

Gradients linear_backward(const Tensor& dy_any, const Tensor& x_any, const Tensor& v, const Tensor& g,
                          const Tensor& norms, const MaybeTensor& y, Dim dim, std::array<bool, 4> mask) {
  const int64_t n = v.size(0), k = v.size(1);
  const int64_t m = k ? x_any.numel() / k : (n ? dy_any.numel() / n : 0);
  Tensor dy = dy_any.reshape({m, n}).contiguous();
  const Tensor x = x_any.reshape({m, k}).contiguous();
  if (y.has_value() && y->defined()) dy = at::threshold_backward(dy, y->reshape({m, n}), 0);
  const bool rows_in_order = dim == Dim(0) && v.is_contiguous() && same_dtype(x, v, g) && v.numel() > 0;
  Gradients result;
  if (rows_in_order && m > 0 && m <= kFewRows) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, v.scalar_type(), "wn_linear_backward",
                                    [&] { result = few_rows_backward<scalar_t>(dy, x, v, g, norms, mask); });
  } else if (rows_in_order && m > 0 && has_gemm(v.scalar_type(), std::max(x_any.numel(), v.numel())) && all_moderate(norms)) {
    AT_DISPATCH_FLOATING_TYPES(v.scalar_type(), "wn_linear_backward",
                               [&] { result = many_rows_backward<scalar_t>(dy, x, v, g, norms, mask); });
  } else {
    result = whole_weight_backward(dy, x, v, g, norms, dim, mask);
  }
  if (mask[0]) std::get<0>(result) = std::get<0>(result).view(x_any.sizes());
  if (mask[3]) std::get<3>(result) = bias_gradient(dy);
  return result;
}

}  // namespace wnfused
