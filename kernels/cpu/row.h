// Vectorized primitives on one contiguous row, for float, double, bfloat16 and half.
// 16-bit rows are widened to float on load and rounded once on store.
#pragma once

#include <ATen/OpMathType.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace wnfused {

template <typename T>
using acc_t = at::opmath_type<T>;

template <typename T>
using Lane = at::vec::Vectorized<acc_t<T>>;

template <typename T>
inline constexpr int64_t kLanes = Lane<T>::size();

template <typename T>
inline Lane<T> load_lane(const T* p, int64_t count = kLanes<T>) {
  if constexpr (std::is_same_v<T, acc_t<T>>) {
    return count == kLanes<T> ? Lane<T>::loadu(p) : Lane<T>::loadu(p, count);
  } else {
    acc_t<T> wide[kLanes<T>] = {};
    for (int64_t i = 0; i < count; ++i) wide[i] = static_cast<acc_t<T>>(p[i]);
    return Lane<T>::loadu(wide);
  }
}

template <typename T>
inline void store_lane(T* p, const Lane<T>& value, int64_t count = kLanes<T>) {
  if constexpr (std::is_same_v<T, acc_t<T>>) {
    count == kLanes<T> ? value.store(p) : value.store(p, count);
  } else {
    acc_t<T> wide[kLanes<T>];
    value.store(wide);
    for (int64_t i = 0; i < count; ++i) p[i] = static_cast<T>(wide[i]);
  }
}

template <typename T>
inline acc_t<T> sum_lanes(const Lane<T>& value) {
  return at::vec::vec_reduce_all<acc_t<T>>([](const Lane<T>& a, const Lane<T>& b) { return a + b; }, value);
}

// Calls body(i, count) for each group of lanes in a row of n. count is a compile-time constant except for a last partial group.
template <typename T, typename Body>
inline void for_lanes(int64_t n, const Body& body) {
  constexpr int64_t w = kLanes<T>;
  int64_t i = 0;
  for (; i + w <= n; i += w) body(i, std::integral_constant<int64_t, w>{});
  if (i < n) body(i, n - i);
}

// <a, b> with four independent chains, to hide the latency of the additions.
template <typename A, typename B>
inline acc_t<A> dot(const A* a, const B* b, int64_t n) {
  static_assert(std::is_same_v<acc_t<A>, acc_t<B>>);
  constexpr int64_t w = kLanes<A>;
  std::array<Lane<A>, 4> sums{Lane<A>(0), Lane<A>(0), Lane<A>(0), Lane<A>(0)};
  int64_t i = 0;
  for (; i + 4 * w <= n; i += 4 * w) {
    for (int j = 0; j < 4; ++j) sums[j] = at::vec::fmadd(load_lane(a + i + j * w), load_lane(b + i + j * w), sums[j]);
  }
  for (; i < n; i += w) {
    const int64_t count = std::min(w, n - i);
    sums[0] = at::vec::fmadd(load_lane(a + i, count), load_lane(b + i, count), sums[0]);
  }
  return sum_lanes<A>((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// Squares of norms outside these bounds lose digits or overflow in the accumulator's type. Such rows take a slower path.
template <typename T>
inline bool square_is_safe(acc_t<T> square) {
  if constexpr (std::is_same_v<acc_t<T>, float>) return square > 1e-24f && square < 1e36f;
  return square > 1e-280 && square < 1e300;
}

// Between these norms products of an unscaled v with x or dy stay in range where those are between 1e-34 and 3e34.
template <typename T>
inline bool norm_is_moderate(acc_t<T> norm) {
  return norm > acc_t<T>(1e-4) && norm < acc_t<T>(1e4);
}

// Sum of squares as mantissa * scale^2, safe for every finite row; used only for rows that failed square_is_safe.
template <typename T>
inline acc_t<T> careful_norm(const T* v, int64_t n, int64_t stride, double eps) {
  double largest = std::sqrt(eps);
  for (int64_t i = 0; i < n; ++i) {
    const double a = std::abs(static_cast<double>(v[i * stride]));
    if (std::isnan(a)) return static_cast<acc_t<T>>(a);
    largest = std::max(largest, a);
  }
  if (largest == 0 || std::isinf(largest)) return static_cast<acc_t<T>>(largest);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double a = static_cast<double>(v[i * stride]) / largest;
    sum += a * a;
  }
  const double e = std::sqrt(eps) / largest;
  return static_cast<acc_t<T>>(largest * std::sqrt(sum + e * e));
}

template <typename T>
inline acc_t<T> row_norm(const T* v, int64_t n, double eps) {
  const acc_t<T> square = dot(v, v, n);
  if (square_is_safe<T>(square)) return std::sqrt(square + static_cast<acc_t<T>>(eps));
  return careful_norm(v, n, 1, eps);
}

template <typename A>
inline A inverse(A norm) {
  return norm == A(0) ? A(0) : A(1) / norm;
}

// a / norm, or 0 for a row of zeros. It rounds once; a * inverse(norm) would round twice.
template <typename A>
inline A over(A a, A norm) {
  return norm == A(0) ? A(0) : a / norm;
}

// out = scale * a
template <typename O, typename A>
inline void scale_row(O* out, const A* a, acc_t<A> scale, int64_t n) {
  const Lane<A> s(scale);
  for_lanes<A>(n, [&](int64_t i, auto count) { store_lane(out + i, load_lane(a + i, count) * s, count); });
}

// <dw, v / norm>
template <typename D, typename T>
inline acc_t<T> row_dot(const D* dw, const T* v, acc_t<T> norm, int64_t n) {
  if (norm_is_moderate<T>(norm)) return over(dot(dw, v, n), norm);
  const acc_t<T> inv = inverse(norm);
  double sum = 0;  // a single chain of additions would lose more digits in float than the four chains of dot
  for (int64_t i = 0; i < n; ++i) sum += static_cast<acc_t<T>>(dw[i]) * (static_cast<acc_t<T>>(v[i]) * inv);
  return static_cast<acc_t<T>>(sum);
}

// dv = scale * (dw - c_over_norm * v); dv may be dw itself. This loop runs in cache and prefetches the next row, whose dot
// would otherwise wait for memory.
template <typename D, typename T, typename O>
inline void project_row(O* dv, const D* dw, const T* v, acc_t<T> scale, acc_t<T> c_over_norm, int64_t n) {
  const Lane<T> s(scale), minus_c(-c_over_norm);
  for_lanes<T>(n, [&](int64_t i, auto count) {
    __builtin_prefetch(dw + n + i);
    __builtin_prefetch(v + n + i);
    store_lane(dv + i, s * at::vec::fmadd(minus_c, load_lane(v + i, count), load_lane(dw + i, count)), count);
  });
}

}  // namespace wnfused
